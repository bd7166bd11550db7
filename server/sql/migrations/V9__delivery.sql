-- Pops that settle at delivery, groups that begin later.

-- Takes up to p_batch records of up to p_width partitions for a group: of one named partition, or of
-- those that have waited longest. Nothing is settled: who settles at delivery does so once the records are
-- rendered (queen.settle_delivered).
--
-- Gives back a row per segment, with the offsets in it that were taken. The last row has no segment:
-- whether there is such a queue, the group if it is subscribed, whether looking again at once may find
-- more, and in how many milliseconds something becomes due.
CREATE OR REPLACE FUNCTION queen.pop(
    p_tenant uuid, p_queue text, p_partition text, p_group text, p_lease uuid, p_seconds integer,
    p_batch bigint, p_width integer, p_raw bigint, p_looks integer
) RETURNS TABLE (
    partition_id bigint, life uuid, partition_name text, taken_from bigint, taken_to bigint,
    base_offset bigint, ts timestamptz, records integer, raw_bytes integer, block bytea,
    known boolean, group_id bigint, again boolean, wake_ms bigint
)
LANGUAGE plpgsql VOLATILE AS $$
#variable_conflict use_column
DECLARE
    v_queue   bigint;
    v_options jsonb;
    v_group   queen.groups;
    v_cursor  queen.cursors;
    v_part    queen.partitions;
    v_named   bigint;
    v_until   timestamptz;
    v_ready   timestamptz;
    v_from    bigint;
    v_to      bigint;
    v_later   timestamptz;
    v_more    boolean;
    v_due     timestamptz;
    v_now     timestamptz;
    v_left    bigint := p_batch;
    v_raw     bigint := p_raw;
    v_claims  integer := 0;
    v_looks   integer := 0;
    s         record;
BEGIN
    SELECT q.id, q.options INTO v_queue, v_options FROM queen.queues q WHERE q.tenant = p_tenant AND q.name = p_queue;
    SELECT g.* INTO v_group FROM queen.groups g WHERE g.tenant = p_tenant AND g.queue = p_queue AND g.name = p_group;
    known := v_queue IS NOT NULL;
    group_id := v_group.id;
    again := false;
    IF v_queue IS NULL OR v_group.id IS NULL THEN
        RETURN NEXT;
        RETURN;
    END IF;
    v_now := clock_timestamp();
    IF v_group.since > greatest(v_now, (SELECT f.ts FROM queen.floor f)) THEN
        -- It has not begun. No partition is met: what is pushed before the instant is not for it.
        wake_ms := ceil(extract(epoch FROM v_group.since - v_now) * 1000)::bigint;
        RETURN NEXT;
        RETURN;
    END IF;
    IF NOT v_group.met THEN
        PERFORM queen.meet(v_group.id, v_queue, 500);
        SELECT NOT g.met INTO again FROM queen.groups g WHERE g.id = v_group.id;
    END IF;
    v_now := clock_timestamp();
    IF p_partition IS NOT NULL THEN
        SELECT p.id INTO v_named FROM queen.partitions p WHERE p.queue_id = v_queue AND p.name = p_partition;
        IF v_named IS NULL THEN
            again := false;
            RETURN NEXT;
            RETURN;
        END IF;
        INSERT INTO queen.cursors (partition_id, group_id, due) VALUES (v_named, v_group.id, v_now)
        ON CONFLICT DO NOTHING;
    END IF;
    v_until := v_now + make_interval(secs => coalesce(p_seconds, (v_options ->> 'leaseTime')::integer, 300));
    v_ready := v_now - make_interval(secs => coalesce((v_options ->> 'delayedProcessing')::integer, 0));

    WHILE v_left > 0 AND v_claims < p_width AND v_raw > 0 LOOP
        IF v_looks - v_claims = p_looks THEN
            again := true;
            EXIT;
        END IF;
        v_looks := v_looks + 1;
        IF v_named IS NULL THEN
            SELECT c.* INTO v_cursor FROM queen.cursors c
            WHERE c.group_id = v_group.id AND c.due <= v_now ORDER BY c.due LIMIT 1 FOR UPDATE SKIP LOCKED;
        ELSE
            SELECT c.* INTO v_cursor FROM queen.cursors c
            WHERE c.partition_id = v_named AND c.group_id = v_group.id AND c.due <= v_now FOR UPDATE SKIP LOCKED;
        END IF;
        EXIT WHEN NOT FOUND;
        SELECT p.* INTO v_part FROM queen.partitions p WHERE p.id = v_cursor.partition_id;
        IF NOT FOUND THEN
            DELETE FROM queen.cursors c WHERE c.partition_id = v_cursor.partition_id AND c.group_id = v_group.id;
            CONTINUE;
        END IF;
        v_from := greatest(
            coalesce(v_cursor.next_offset, queen.offset_since(v_part.id, v_group.since)), v_part.log_start);
        v_to := v_from;
        v_later := NULL;
        FOR s IN
            SELECT g.base_offset, g.base_offset + g.records AS upto, g.ts, g.records, g.raw_bytes, g.block
            FROM queen.segments g
            WHERE g.partition_id = v_part.id AND g.base_offset >= coalesce((
                SELECT max(h.base_offset) FROM queen.segments h
                WHERE h.partition_id = v_part.id AND h.base_offset <= v_from), v_from)
            ORDER BY g.base_offset
        LOOP
            CONTINUE WHEN s.upto <= v_from;
            IF s.ts > v_ready AND v_options ? 'delayedProcessing' THEN
                v_later := s.ts + (v_now - v_ready);
                EXIT;
            END IF;
            -- Retention was here between the two reads.
            IF v_to = v_from AND s.base_offset > v_from THEN
                v_from := s.base_offset;
                v_to := v_from;
            END IF;
            partition_id := v_part.id;
            life := v_part.life;
            partition_name := v_part.name;
            taken_from := greatest(v_from, s.base_offset);
            taken_to := least(s.upto, v_from + v_left);
            base_offset := s.base_offset;
            ts := s.ts;
            records := s.records;
            raw_bytes := s.raw_bytes;
            block := s.block;
            RETURN NEXT;
            v_to := taken_to;
            v_raw := v_raw - s.raw_bytes - 300 * (taken_to - taken_from);
            EXIT WHEN v_to >= v_from + v_left OR v_raw <= 0;
        END LOOP;
        v_left := v_left - (v_to - v_from);
        IF v_to = v_from THEN
            UPDATE queen.cursors c SET next_offset = v_from, lease_id = NULL
            WHERE c.partition_id = v_part.id AND c.group_id = v_group.id;
            v_more := queen.rest(v_part.id, v_group.id, v_from, coalesce(v_later, clock_timestamp()));
            -- A push was committed after the look at the segments.
            again := again OR (v_more AND v_later IS NULL);
            CONTINUE;
        END IF;
        v_claims := v_claims + 1;
        UPDATE queen.cursors c
        SET next_offset = v_from, due = v_until, lease_id = p_lease, lease_from = v_from, lease_to = v_to
        WHERE c.partition_id = v_part.id AND c.group_id = v_group.id;
    END LOOP;

    partition_id := NULL;
    block := NULL;
    IF v_claims = 0 THEN
        IF v_named IS NULL THEN
            SELECT c.due INTO v_due FROM queen.cursors c
            WHERE c.group_id = v_group.id AND c.due > v_now ORDER BY c.due LIMIT 1;
        ELSE
            SELECT c.due INTO v_due FROM queen.cursors c
            WHERE c.partition_id = v_named AND c.group_id = v_group.id;
        END IF;
        wake_ms := ceil(extract(epoch FROM v_due - clock_timestamp()) * 1000)::bigint;
    END IF;
    RETURN NEXT;
END
$$;

-- Settles what was rendered of a pop, each partition up to its s_upto, and gives the lease back. A
-- partition is left alone for its s_pause milliseconds: the segment at s_upto cannot be read. Where the
-- lease is no longer held in all of them, nothing is done and serialization_failure raised. Gives back
-- whether there is more to take at once.
CREATE FUNCTION queen.settle_delivered(
    p_lease uuid, p_group bigint, s_partition bigint[], s_upto bigint[], s_pause integer[]
) RETURNS boolean
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_more boolean := false;
    s      record;
BEGIN
    FOR s IN
        SELECT * FROM unnest(s_partition, s_upto, s_pause) AS u (partition_id, upto, pause) ORDER BY u.partition_id
    LOOP
        UPDATE queen.cursors c
        SET next_offset = s.upto, lease_id = NULL, lease_to = s.upto,
            failed_offset = CASE WHEN c.failed_offset >= s.upto THEN c.failed_offset END,
            failures = CASE WHEN c.failed_offset >= s.upto THEN c.failures ELSE 0 END
        WHERE c.partition_id = s.partition_id AND c.group_id = p_group
          AND c.lease_id = p_lease AND c.due > clock_timestamp();
        IF NOT FOUND THEN
            RAISE EXCEPTION 'the lease has ended' USING ERRCODE = 'serialization_failure';
        END IF;
        v_more := (queen.rest(s.partition_id, p_group, s.upto,
            clock_timestamp() + make_interval(secs => s.pause / 1000.0)) AND s.pause = 0) OR v_more;
    END LOOP;
    RETURN v_more;
END
$$;

-- Shortens what a pop has taken from one partition to what lies below p_upto: the segment there cannot
-- be read. Where that leaves nothing, the partition is left alone for p_pause
-- milliseconds.
CREATE OR REPLACE FUNCTION queen.cut(
    p_partition bigint, p_group bigint, p_lease uuid, p_from bigint, p_to bigint, p_upto bigint, p_pause integer
) RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_later timestamptz := clock_timestamp() + make_interval(secs => p_pause / 1000.0);
BEGIN
    IF p_upto = p_from THEN
        UPDATE queen.cursors SET lease_id = NULL, due = v_later
        WHERE partition_id = p_partition AND group_id = p_group AND lease_id = p_lease;
    ELSE
        UPDATE queen.cursors SET lease_to = p_upto
        WHERE partition_id = p_partition AND group_id = p_group AND lease_id = p_lease;
    END IF;
END
$$;
