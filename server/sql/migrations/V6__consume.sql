-- How many groups of a tenant wait, p_most at most.
CREATE FUNCTION queen.waiting_groups(p_tenant uuid, p_most bigint) RETURNS bigint
LANGUAGE sql VOLATILE AS $$
    SELECT count(*) FROM (
        SELECT 1 FROM queen.groups s WHERE s.tenant = p_tenant AND s.waits LIMIT p_most
    ) l
$$;

-- Subscribes a group, once and for all: from p_since, or from now when that is NULL. Where the queue is not there
-- and p_most groups of such queues are, nothing is done and QS004 raised: names of queues that never come cost
-- nothing to think of.
CREATE FUNCTION queen.subscribe(
    p_tenant uuid, p_queue text, p_group text, p_since timestamptz, p_most bigint
) RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_now   timestamptz := clock_timestamp();
    v_waits boolean := NOT EXISTS (SELECT 1 FROM queen.queues q WHERE q.tenant = p_tenant AND q.name = p_queue);
BEGIN
    IF v_waits AND queen.waiting_groups(p_tenant, p_most) >= p_most THEN
        WITH came AS MATERIALIZED (
            SELECT s.id FROM queen.groups s
            JOIN queen.queues q ON q.tenant = s.tenant AND q.name = s.queue
            WHERE s.tenant = p_tenant AND s.waits
            FOR UPDATE OF s SKIP LOCKED
        )
        UPDATE queen.groups s SET waits = false FROM came c WHERE s.id = c.id;
        IF queen.waiting_groups(p_tenant, p_most) >= p_most THEN
            RAISE EXCEPTION 'too many groups wait for queues that are not there' USING ERRCODE = 'QS004';
        END IF;
    END IF;
    INSERT INTO queen.groups (tenant, queue, name, since, waits)
    VALUES (p_tenant, p_queue, p_group, coalesce(p_since, v_now), v_waits)
    ON CONFLICT DO NOTHING;
    IF p_since IS NULL AND FOUND THEN
        -- Whatever the clock does, no push that begins after this was committed is before "now".
        UPDATE queen.floor SET ts = v_now WHERE ts < v_now;
    END IF;
END
$$;

-- Gives a group cursors in the next p_limit partitions of its queue that are older than itself, or than
-- its last move.
CREATE FUNCTION queen.meet(p_group bigint, p_queue bigint, p_limit integer) RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_group queen.groups;
    v_last  text;
    v_count bigint;
BEGIN
    -- Waits for pushes that make a partition and have not seen this group.
    PERFORM pg_advisory_xact_lock(1364525059, queen.queue_lock(s.tenant, s.queue))
    FROM queen.groups s WHERE s.id = p_group AND s.met_to IS NULL;
    SELECT s.* INTO v_group FROM queen.groups s WHERE s.id = p_group AND NOT s.met FOR UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    WITH page AS MATERIALIZED (
        SELECT p.id, p.name, p.last_ts FROM queen.partitions p
        WHERE p.queue_id = p_queue AND p.name > coalesce(v_group.met_to, '') ORDER BY p.name LIMIT p_limit
    ), quiet AS MATERIALIZED (
        -- Nothing for this group in them yet. What a push holds is looked at when its turn comes.
        SELECT p.id, p.next_offset FROM page g JOIN queen.partitions p ON p.id = g.id
        WHERE p.last_ts < v_group.since FOR UPDATE OF p SKIP LOCKED
    ), armed AS (
        UPDATE queen.partitions p SET armed = true FROM quiet t WHERE p.id = t.id
    ), made AS (
        INSERT INTO queen.cursors (partition_id, group_id, next_offset, due, moves)
        SELECT g.id, p_group, t.next_offset, CASE WHEN t.id IS NULL THEN clock_timestamp() END, v_group.moves
        FROM page g LEFT JOIN quiet t ON t.id = g.id
        ORDER BY g.id
        ON CONFLICT DO NOTHING
    ), stale AS MATERIALIZED (
        SELECT c.partition_id FROM page g
        JOIN queen.cursors c ON c.partition_id = g.id AND c.group_id = p_group
        WHERE c.moves <> v_group.moves
        ORDER BY c.partition_id FOR UPDATE OF c
    ), moved AS (
        UPDATE queen.cursors c
        SET next_offset = t.next_offset, due = CASE WHEN t.id IS NULL THEN clock_timestamp() END,
            lease_id = NULL, lease_from = NULL, lease_to = NULL, failed_offset = NULL, failures = 0,
            moves = v_group.moves
        FROM stale s LEFT JOIN quiet t ON t.id = s.partition_id
        WHERE c.partition_id = s.partition_id AND c.group_id = p_group
    )
    SELECT max(g.name), count(*) INTO v_last, v_count FROM page g;
    UPDATE queen.groups SET met_to = coalesce(v_last, met_to, ''), met = v_count < p_limit WHERE id = p_group;
END
$$;

-- The first offset of a partition whose ts is p_since or later: ts rises with the offset.
CREATE FUNCTION queen.offset_since(p_partition bigint, p_since timestamptz) RETURNS bigint
LANGUAGE plpgsql STABLE AS $$
DECLARE
    v_low  bigint;
    v_high bigint;
    v_mid  bigint;
    s      record;
BEGIN
    SELECT p.log_start, p.next_offset INTO v_low, v_high FROM queen.partitions p WHERE p.id = p_partition;
    IF p_since = '-infinity' THEN
        RETURN v_low;
    END IF;
    WHILE v_low < v_high LOOP
        v_mid := (v_low + v_high) / 2;
        SELECT g.base_offset, g.base_offset + g.records AS upto, g.ts INTO s
        FROM queen.segments g WHERE g.partition_id = p_partition AND g.base_offset <= v_mid
        ORDER BY g.base_offset DESC LIMIT 1;
        IF FOUND AND s.ts >= p_since THEN
            v_high := s.base_offset;
        ELSE
            v_low := greatest(coalesce(s.upto, 0), v_mid + 1);
        END IF;
    END LOOP;
    RETURN v_low;
END
$$;

-- Sets a cursor that holds no lease to rest: until the next push where all is read, else until
-- p_at. Gives back whether there is more to take.
CREATE FUNCTION queen.rest(p_partition bigint, p_group bigint, p_next bigint, p_at timestamptz) RETURNS boolean
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_more boolean;
BEGIN
    SELECT p.next_offset > p_next INTO v_more FROM queen.partitions p WHERE p.id = p_partition;
    IF NOT coalesce(v_more, false) THEN
        -- The row as it is when it is locked: a push that came between is seen.
        PERFORM 1 FROM queen.partitions p
        WHERE p.id = p_partition AND p.next_offset <= p_next FOR UPDATE SKIP LOCKED;
        IF FOUND THEN
            UPDATE queen.partitions SET armed = true WHERE id = p_partition AND NOT armed;
            UPDATE queen.cursors SET due = NULL WHERE partition_id = p_partition AND group_id = p_group;
            RETURN false;
        END IF;
        -- A push is at it, and what it brings will be there in a moment.
        UPDATE queen.cursors SET due = greatest(p_at, clock_timestamp() + interval '20 milliseconds')
        WHERE partition_id = p_partition AND group_id = p_group;
        RETURN false;
    END IF;
    UPDATE queen.cursors SET due = p_at WHERE partition_id = p_partition AND group_id = p_group;
    RETURN true;
END
$$;

-- Takes up to p_batch records of up to p_width partitions for a group: of one named partition, or of
-- those that have waited longest. Nothing is settled: who settles at delivery does so once the records are
-- rendered (queen.settle_delivered).
--
-- Gives back a row per segment, with the offsets in it that were taken. The last row has no segment:
-- whether there is such a queue, the group if it is subscribed, whether looking again at once may find
-- more, and in how many milliseconds something becomes due.
CREATE FUNCTION queen.pop(
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
    v_delay   integer;
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
    SELECT q.id, queen.effective(q.options) INTO v_queue, v_options FROM queen.queues q WHERE q.tenant = p_tenant AND q.name = p_queue;
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
        IF NOT FOUND THEN
            -- Deleted meanwhile, by itself or with its queue.
            known := EXISTS (SELECT 1 FROM queen.queues q WHERE q.id = v_queue AND q.tenant IS NOT NULL);
            group_id := NULL;
            again := false;
            RETURN NEXT;
            RETURN;
        END IF;
    END IF;
    v_now := clock_timestamp();
    IF p_partition IS NOT NULL THEN
        SELECT p.id INTO v_named FROM queen.partitions p WHERE p.queue_id = v_queue AND p.name = p_partition;
        IF v_named IS NULL THEN
            again := false;
            RETURN NEXT;
            RETURN;
        END IF;
        UPDATE queen.cursors c
        SET next_offset = NULL, due = v_now, lease_id = NULL, lease_from = NULL, lease_to = NULL,
            failed_offset = NULL, failures = 0, moves = v_group.moves
        WHERE c.partition_id = v_named AND c.group_id = v_group.id AND c.moves < v_group.moves;
        INSERT INTO queen.cursors (partition_id, group_id, due, moves)
        VALUES (v_named, v_group.id, v_now, v_group.moves)
        ON CONFLICT DO NOTHING;
    END IF;
    v_until := v_now + make_interval(secs => coalesce(p_seconds, (v_options ->> 'leaseTime')::integer));
    v_delay := (v_options ->> 'delayedProcessing')::integer;
    v_ready := v_now - make_interval(secs => v_delay);

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
        IF v_cursor.moves > v_group.moves THEN
            -- The group was moved since this pop began.
            again := true;
            EXIT;
        END IF;
        IF v_cursor.moves < v_group.moves THEN
            v_cursor.next_offset := NULL;
            UPDATE queen.cursors c SET failed_offset = NULL, failures = 0, moves = v_group.moves
            WHERE c.partition_id = v_cursor.partition_id AND c.group_id = v_group.id;
        END IF;
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
            IF s.ts > v_ready AND v_delay > 0 THEN
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

-- Shortens what a pop has taken from one partition to what lies below p_upto: the segment there cannot
-- be read. Where that leaves nothing, the partition is left alone for p_pause
-- milliseconds.
CREATE FUNCTION queen.cut(
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

-- Moves cursors, each only if it stands where it stood when the move was worked out; else nothing is
-- done and serialization_failure raised. Where a lease is given back, the cursor rests.
CREATE FUNCTION queen.settle(
    s_partition bigint[], s_group bigint[], e_next bigint[], e_lease uuid[], e_failures integer[],
    n_next bigint[], n_release boolean[], n_pause integer[], n_failed bigint[], n_failures integer[],
    d_queue bigint[], d_life uuid[], d_partition text[], d_group text[], d_offset bigint[], d_hash uuid[],
    d_ts timestamptz[], d_failures integer[], d_reason text[], d_raw integer[], d_block bytea[]
) RETURNS boolean
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_cursor queen.cursors;
    v_more   boolean := false;
    s        record;
BEGIN
    FOR s IN
        SELECT * FROM unnest(s_partition, s_group, e_next, e_lease, e_failures, n_next, n_release, n_pause, n_failed, n_failures)
            AS u (partition_id, group_id, old_next, old_lease, old_failures, next_offset, release, pause, failed, failures)
        ORDER BY u.partition_id, u.group_id
    LOOP
        SELECT c.* INTO v_cursor FROM queen.cursors c
        WHERE c.partition_id = s.partition_id AND c.group_id = s.group_id FOR UPDATE;
        IF NOT FOUND OR v_cursor.next_offset IS DISTINCT FROM s.old_next
            OR v_cursor.lease_id IS DISTINCT FROM s.old_lease OR v_cursor.failures <> s.old_failures THEN
            RAISE EXCEPTION 'the cursor has moved' USING ERRCODE = 'serialization_failure';
        END IF;
        IF s.release THEN
            UPDATE queen.cursors c
            SET next_offset = s.next_offset, lease_id = NULL, failed_offset = s.failed, failures = s.failures
            WHERE c.partition_id = s.partition_id AND c.group_id = s.group_id;
            v_more := queen.rest(s.partition_id, s.group_id, s.next_offset,
                clock_timestamp() + make_interval(secs => s.pause / 1000.0)) OR v_more;
        ELSE
            UPDATE queen.cursors c
            SET next_offset = s.next_offset, failed_offset = s.failed, failures = s.failures
            WHERE c.partition_id = s.partition_id AND c.group_id = s.group_id;
        END IF;
    END LOOP;
    INSERT INTO queen.dead_letters
        (queue_id, life, partition, group_name, record_offset, id_hash, ts, failures, reason, raw_bytes, block)
    SELECT * FROM unnest(d_queue, d_life, d_partition, d_group, d_offset, d_hash, d_ts, d_failures, d_reason, d_raw, d_block);
    RETURN v_more;
END
$$;

-- Moves a group to the first record from p_since on, in every partition of its queue, at once: cursors
-- follow as they are met. Gives back in how many that will be, p_most at most, or NULL when there is no
-- such group.
CREATE FUNCTION queen.seek(
    p_tenant uuid, p_queue text, p_group text, p_since timestamptz, p_most bigint
) RETURNS bigint
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_group bigint;
    v_count bigint;
BEGIN
    UPDATE queen.groups
    SET since = p_since, moves = moves + 1, met = false, met_to = CASE WHEN met_to IS NOT NULL THEN '' END
    WHERE tenant = p_tenant AND queue = p_queue AND name = p_group
    RETURNING id INTO v_group;
    IF v_group IS NULL THEN
        RETURN NULL;
    END IF;
    SELECT count(*) INTO v_count
    FROM (SELECT 1 FROM queen.cursors c WHERE c.group_id = v_group LIMIT p_most) l;
    RETURN v_count;
END
$$;
