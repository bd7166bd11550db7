-- Consumer groups. docs/broker.md, "Consumers", says what holds; here is how.
--
-- Locks are taken in this order and waited for in no other: queue, partitions by (queue, name),
-- cursors by (partition, group), floor. Taking a record never waits for a push: where it needs a
-- partition's row it takes it only if it is free.

-- Raised when someone has read a partition to its end and wants to hear of the next push. Not
-- indexed: clearing it costs a push nothing.
ALTER TABLE queen.partitions ADD COLUMN armed boolean NOT NULL DEFAULT false;

-- Clients name a partition by its life.
CREATE UNIQUE INDEX partitions_by_life ON queen.partitions (life);

-- A group of one queue, which may be subscribed before the queue is there.
--   since   records with a ts below it are not for this group
--   met_to  name of the last partition that was given a cursor; NULL before the first
--   met     every partition older than the group has a cursor; younger ones get theirs with a push
CREATE TABLE queen.groups (
    id         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    tenant     uuid NOT NULL,
    queue      text COLLATE "C" NOT NULL,
    name       text COLLATE "C" NOT NULL,
    since      timestamptz NOT NULL,
    met_to     text COLLATE "C",
    met        boolean NOT NULL DEFAULT false,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    UNIQUE (tenant, queue, name)
);

-- Where a group stands in a partition.
--   next_offset    everything below it is settled; NULL until the first look
--   due            when there may be something to take: at once, or when the lease ends;
--                  NULL when all is read and the partition is armed
--   lease_id       who has taken lease_from to lease_to - 1; it holds until "due"
--   failed_offset  the record that failed last, and how often in a row
CREATE TABLE queen.cursors (
    partition_id  bigint NOT NULL,
    group_id      bigint NOT NULL,
    next_offset   bigint,
    due           timestamptz,
    lease_id      uuid,
    lease_from    bigint,
    lease_to      bigint,
    failed_offset bigint,
    failures      integer NOT NULL DEFAULT 0,
    PRIMARY KEY (partition_id, group_id)
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.05);

CREATE INDEX cursors_by_due ON queen.cursors (group_id, due);
CREATE INDEX cursors_by_lease ON queen.cursors (lease_id) WHERE lease_id IS NOT NULL;

-- Records that were given up on. "block" holds one record as a segment would, sealed where the
-- queue is; "id_hash" finds it by its transaction id.
CREATE TABLE queen.dead_letters (
    id            bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    queue_id      bigint NOT NULL,
    life          uuid NOT NULL,
    partition     text COLLATE "C" NOT NULL,
    group_name    text COLLATE "C" NOT NULL,
    record_offset bigint NOT NULL,
    id_hash       uuid NOT NULL,
    ts            timestamptz NOT NULL,
    failures      integer NOT NULL,
    reason        text,
    failed_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    raw_bytes     integer NOT NULL,
    block         bytea NOT NULL
);
ALTER TABLE queen.dead_letters ALTER COLUMN block SET STORAGE EXTERNAL;
CREATE INDEX dead_letters_by_queue ON queen.dead_letters (queue_id, group_name, id);
CREATE INDEX dead_letters_by_record ON queen.dead_letters (life, id_hash);

-- Makes what of the queues and partitions is missing, and locks the partitions' rows for a push.
-- Groups that have read one of them to its end are told.
CREATE FUNCTION queen.allocate(p_tenant uuid, p_queues text[], p_partitions text[]) RETURNS bigint[]
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_ids   bigint[];
    v_armed bigint[];
    v_known bigint;
BEGIN
    -- Creation comes before any lock on an existing row, and in one order of names: two pushes can
    -- wait for one another but never in a circle.
    SELECT count(*) INTO v_known
    FROM unnest(p_queues, p_partitions) AS g (queue, part)
    JOIN queen.queues q ON q.tenant = p_tenant AND q.name = g.queue
    JOIN queen.partitions p ON p.queue_id = q.id AND p.name = g.part;
    IF v_known < cardinality(p_queues) THEN
        INSERT INTO queen.queues (tenant, name)
        SELECT p_tenant, g.queue
        FROM (SELECT DISTINCT u.queue COLLATE "C" AS queue FROM unnest(p_queues) AS u (queue)) g
        WHERE NOT EXISTS (SELECT 1 FROM queen.queues q WHERE q.tenant = p_tenant AND q.name = g.queue)
        ORDER BY g.queue
        ON CONFLICT DO NOTHING;

        -- A group that is about to meet the queue's partitions (queen.meet) is waited for, or waits:
        -- either it finds the partitions made here, or they are armed for it.
        PERFORM 1 FROM queen.queues q
        WHERE q.tenant = p_tenant AND q.name = ANY (p_queues) ORDER BY q.name FOR KEY SHARE;

        INSERT INTO queen.partitions (queue_id, name, armed)
        SELECT q.id, g.part,
               EXISTS (SELECT 1 FROM queen.groups s WHERE s.tenant = p_tenant AND s.queue = g.queue)
        FROM unnest(p_queues, p_partitions) AS g (queue, part)
        JOIN queen.queues q ON q.tenant = p_tenant AND q.name = g.queue
        WHERE NOT EXISTS (SELECT 1 FROM queen.partitions p WHERE p.queue_id = q.id AND p.name = g.part)
        ORDER BY q.id, g.part COLLATE "C"
        ON CONFLICT DO NOTHING;
    END IF;

    SELECT array_agg(l.id ORDER BY l.ord), array_agg(l.id) FILTER (WHERE l.armed) INTO v_ids, v_armed
    FROM (
        SELECT p.id, p.armed, g.ord
        FROM unnest(p_queues, p_partitions) WITH ORDINALITY AS g (queue, part, ord)
        JOIN queen.queues q ON q.tenant = p_tenant AND q.name = g.queue
        JOIN queen.partitions p ON p.queue_id = q.id AND p.name = g.part
        ORDER BY p.queue_id, p.name
        FOR UPDATE OF p
    ) l;
    IF coalesce(cardinality(v_ids), 0) < cardinality(p_queues) THEN
        -- A queue or partition was deleted while this push waited for it: begin again.
        RAISE EXCEPTION 'a partition of this push was deleted meanwhile' USING ERRCODE = 'serialization_failure';
    END IF;
    IF v_armed IS NOT NULL THEN
        INSERT INTO queen.cursors AS c (partition_id, group_id, due)
        SELECT p.id, s.id, clock_timestamp()
        FROM unnest(v_armed) AS w (id)
        JOIN queen.partitions p ON p.id = w.id
        JOIN queen.queues q ON q.id = p.queue_id
        JOIN queen.groups s ON s.tenant = q.tenant AND s.queue = q.name
        ORDER BY p.id, s.id
        ON CONFLICT (partition_id, group_id) DO UPDATE SET due = excluded.due WHERE c.due IS NULL;
    END IF;
    RETURN v_ids;
END
$$;

-- As in V1, over queen.allocate.
CREATE OR REPLACE FUNCTION queen.push(
    p_tenant uuid, p_queues text[], p_partitions text[], p_counts bigint[],
    s_group integer[], s_rel bigint[], s_records integer[], s_raw integer[], s_payload bigint[],
    s_block bytea[]
) RETURNS TABLE (life uuid, base_offset bigint)
LANGUAGE plpgsql VOLATILE AS $$
#variable_conflict use_column
DECLARE
    v_ids   bigint[];
    v_lives uuid[];
    v_bases bigint[];
    v_ts    timestamptz[];
    v_now   timestamptz;
BEGIN
    v_ids := queen.allocate(p_tenant, p_queues, p_partitions);

    SELECT greatest(clock_timestamp(), transaction_timestamp(), f.ts) INTO STRICT v_now FROM queen.floor f;

    WITH moved AS (
        UPDATE queen.partitions p
        SET next_offset   = p.next_offset + g.n,
            last_ts       = greatest(v_now, p.last_ts),
            last_write_at = greatest(p.last_write_at, date_trunc('second', greatest(v_now, p.last_ts))),
            armed         = false
        FROM unnest(v_ids, p_counts) WITH ORDINALITY AS g (id, n, ord)
        WHERE p.id = g.id
        RETURNING g.ord, p.life, p.next_offset - g.n AS base, p.last_ts
    )
    SELECT array_agg(m.life ORDER BY m.ord), array_agg(m.base ORDER BY m.ord), array_agg(m.last_ts ORDER BY m.ord)
    INTO v_lives, v_bases, v_ts
    FROM moved m;

    INSERT INTO queen.segments (partition_id, base_offset, ts, payload_bytes, raw_bytes, records, block)
    SELECT v_ids[s.g], v_bases[s.g] + s.rel, v_ts[s.g], s.payload, s.raw, s.n, s.block
    FROM unnest(s_group, s_rel, s_records, s_raw, s_payload, s_block) AS s (g, rel, n, raw, payload, block);

    RETURN QUERY SELECT * FROM unnest(v_lives, v_bases);
END
$$;

-- Subscribes a group, once and for all: from p_since, or from now when that is NULL.
CREATE FUNCTION queen.subscribe(p_tenant uuid, p_queue text, p_group text, p_since timestamptz) RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_now timestamptz := clock_timestamp();
BEGIN
    INSERT INTO queen.groups (tenant, queue, name, since)
    VALUES (p_tenant, p_queue, p_group, coalesce(p_since, v_now))
    ON CONFLICT DO NOTHING;
    IF p_since IS NULL AND FOUND THEN
        -- Whatever the clock does, no push that begins after this was committed is before "now".
        UPDATE queen.floor SET ts = v_now WHERE ts < v_now;
    END IF;
END
$$;

-- Gives a group cursors in the next p_limit partitions of its queue that are older than itself.
CREATE FUNCTION queen.meet(p_group bigint, p_queue bigint, p_limit integer) RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_group queen.groups;
    v_last  text;
    v_count bigint;
BEGIN
    IF EXISTS (SELECT 1 FROM queen.groups s WHERE s.id = p_group AND s.met_to IS NULL) THEN
        -- Waits for pushes that make a partition and have not seen this group.
        PERFORM 1 FROM queen.queues q WHERE q.id = p_queue FOR UPDATE;
    END IF;
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
        INSERT INTO queen.cursors (partition_id, group_id, next_offset, due)
        SELECT g.id, p_group, t.next_offset, CASE WHEN t.id IS NULL THEN clock_timestamp() END
        FROM page g LEFT JOIN quiet t ON t.id = g.id
        ORDER BY g.id
        ON CONFLICT DO NOTHING
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
-- those that have waited longest. Without p_lease what is taken is settled with it.
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
    v_ready   timestamptz;
    v_from    bigint;
    v_to      bigint;
    v_later   timestamptz;
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
            PERFORM queen.rest(v_part.id, v_group.id, v_from, coalesce(v_later, clock_timestamp()));
            CONTINUE;
        END IF;
        v_claims := v_claims + 1;
        IF p_lease IS NULL THEN
            UPDATE queen.cursors c
            SET next_offset = v_to, lease_id = NULL, lease_from = v_from, lease_to = v_to,
                failed_offset = NULL, failures = 0
            WHERE c.partition_id = v_part.id AND c.group_id = v_group.id;
            PERFORM queen.rest(v_part.id, v_group.id, v_to, clock_timestamp());
        ELSE
            UPDATE queen.cursors c
            SET next_offset = v_from, due = v_until, lease_id = p_lease, lease_from = v_from, lease_to = v_to
            WHERE c.partition_id = v_part.id AND c.group_id = v_group.id;
        END IF;
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
    IF p_lease IS NULL THEN
        UPDATE queen.cursors
        SET next_offset = p_upto, lease_to = p_upto, due = v_later
        WHERE partition_id = p_partition AND group_id = p_group AND lease_id IS NULL AND next_offset = p_to;
    ELSIF p_upto = p_from THEN
        UPDATE queen.cursors SET lease_id = NULL, due = v_later
        WHERE partition_id = p_partition AND group_id = p_group AND lease_id = p_lease;
    ELSE
        UPDATE queen.cursors SET lease_to = p_upto
        WHERE partition_id = p_partition AND group_id = p_group AND lease_id = p_lease;
    END IF;
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

-- Moves a group, in every partition of its queue, to the first record from p_since on, or from now on.
-- Gives back in how many it was, or NULL when there is no such group.
CREATE FUNCTION queen.seek(p_tenant uuid, p_queue text, p_group text, p_since timestamptz) RETURNS bigint
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_group bigint;
    v_count bigint;
    v_now   timestamptz := clock_timestamp();
BEGIN
    UPDATE queen.groups SET since = coalesce(p_since, v_now)
    WHERE tenant = p_tenant AND queue = p_queue AND name = p_group
    RETURNING id INTO v_group;
    IF v_group IS NULL THEN
        RETURN NULL;
    END IF;
    PERFORM 1 FROM queen.cursors c WHERE c.group_id = v_group ORDER BY c.partition_id FOR UPDATE;
    UPDATE queen.cursors
    SET next_offset = NULL, due = v_now, lease_id = NULL, lease_from = NULL, lease_to = NULL,
        failed_offset = NULL, failures = 0
    WHERE group_id = v_group;
    GET DIAGNOSTICS v_count = ROW_COUNT;
    IF p_since IS NULL THEN
        UPDATE queen.floor SET ts = v_now WHERE ts < v_now;
    END IF;
    RETURN v_count;
END
$$;

-- Up to where every group of its queue has settled a partition: the offset below which everything is
-- complete. NULL when the queue has no group. A partition that a group has not met is not complete.
CREATE FUNCTION queen.completed_to(p_partition bigint) RETURNS bigint
LANGUAGE sql STABLE AS $$
    SELECT min(coalesce(c.next_offset, 0))
    FROM queen.partitions p
    JOIN queen.queues q ON q.id = p.queue_id
    JOIN queen.groups s ON s.tenant = q.tenant AND s.queue = q.name
    LEFT JOIN queen.cursors c ON c.partition_id = p.id AND c.group_id = s.id
    WHERE p.id = p_partition
$$;

-- As in V5; the queue's groups go at once, and what else is theirs in the background.
CREATE OR REPLACE FUNCTION queen.delete_queue(p_tenant uuid, p_name text) RETURNS boolean
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_queue bigint;
BEGIN
    -- Waits for new partitions, whose rows refer to this one.
    SELECT q.id INTO v_queue FROM queen.queues q WHERE q.tenant = p_tenant AND q.name = p_name FOR UPDATE;
    DELETE FROM queen.groups s WHERE s.tenant = p_tenant AND s.queue = p_name;
    IF v_queue IS NULL THEN
        RETURN false;
    END IF;
    INSERT INTO queen.deleted_queues (queue_id, tenant, name) VALUES (v_queue, p_tenant, p_name);
    UPDATE queen.queues q SET tenant = NULL WHERE q.id = v_queue;
    RETURN true;
END
$$;
