-- Groups of any size are moved and deleted at once, and pushes that make partitions do not overtake for
-- ever those who wait for them.
--
-- Locks are taken in this order and waited for in no other: queue (queen.queue_lock), partitions by
-- (queue, name), cursors by (partition, group), floor.

-- How often a group was moved. A cursor of an earlier move stands nowhere: it holds no lease, and what
-- is taken by it begins where the group does. Groups meet the partitions with such cursors anew.
ALTER TABLE queen.groups ADD COLUMN moves integer NOT NULL DEFAULT 0;
ALTER TABLE queen.cursors ADD COLUMN moves integer NOT NULL DEFAULT 0;

-- Groups that are gone, and whose cursors go in small steps.
CREATE TABLE queen.deleted_groups (
    group_id   bigint PRIMARY KEY,
    deleted_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- What stands for a queue among the advisory locks of the class 1364525059. It is shared by pushes that
-- make partitions, and held alone by whoever has to see all of these. A lock of the queue's row would not
-- do: those who share one are let in while another waits to have it alone. There are 256,
-- for all tenants: few enough that pushes to many queues do not fill the server's table of locks.
CREATE FUNCTION queen.queue_lock(p_tenant uuid, p_queue text) RETURNS integer
LANGUAGE sql IMMUTABLE AS $$ SELECT hashtext(p_tenant::text || p_queue) & 255 $$;

-- As in V10.
CREATE OR REPLACE FUNCTION queen.allocate(p_tenant uuid, p_queues text[], p_partitions text[]) RETURNS bigint[]
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_ids    bigint[];
    v_queues bigint[];
    v_armed  bigint[];
    v_made   boolean := false;
BEGIN
    -- Creation comes before any lock on an existing row, and in one order of names: two pushes can
    -- wait for one another but never in a circle.
    v_ids := queen.partition_ids(p_tenant, p_queues, p_partitions);
    IF array_position(v_ids, NULL) IS NOT NULL THEN
        v_made := true;
        -- A group that is about to meet the queue's partitions (queen.meet) is waited for, or waits:
        -- either it finds the partitions made here, or they are armed for it.
        PERFORM pg_advisory_xact_lock_shared(1364525059, l.key)
        FROM (
            SELECT DISTINCT queen.queue_lock(p_tenant, u.queue) AS key FROM unnest(p_queues) AS u (queue)
            ORDER BY key
        ) l;
        INSERT INTO queen.queues (tenant, name)
        SELECT p_tenant, g.queue
        FROM (SELECT DISTINCT u.queue COLLATE "C" AS queue FROM unnest(p_queues) AS u (queue)) g
        WHERE NOT EXISTS (SELECT 1 FROM queen.queues q WHERE q.tenant = p_tenant AND q.name = g.queue)
        ORDER BY g.queue
        ON CONFLICT DO NOTHING;

        v_ids := queen.partition_ids(p_tenant, p_queues, p_partitions);
        INSERT INTO queen.partitions (queue_id, name, armed)
        SELECT q.id, g.part,
               EXISTS (SELECT 1 FROM queen.groups s WHERE s.tenant = p_tenant AND s.queue = g.queue)
        FROM unnest(p_queues, p_partitions, v_ids) AS g (queue, part, id)
        JOIN queen.queues q ON q.tenant = p_tenant AND q.name = g.queue
        WHERE g.id IS NULL
        ORDER BY q.id, g.part COLLATE "C"
        ON CONFLICT DO NOTHING;
        v_ids := queen.partition_ids(p_tenant, p_queues, p_partitions);
    END IF;

    SELECT array_agg(l.id ORDER BY l.ord), array_agg(l.id) FILTER (WHERE l.armed), array_agg(DISTINCT l.queue_id)
    INTO v_ids, v_armed, v_queues
    FROM (
        SELECT p.id, p.queue_id, p.armed, g.ord
        FROM unnest(v_ids) WITH ORDINALITY AS g (id, ord)
        JOIN queen.partitions p ON p.id = g.id
        ORDER BY p.queue_id, p.name
        FOR UPDATE OF p
    ) l;
    IF coalesce(cardinality(v_ids), 0) < cardinality(p_queues) OR EXISTS (
        SELECT 1 FROM unnest(v_queues) AS w (id) JOIN queen.queues q ON q.id = w.id WHERE q.tenant IS NULL
    ) THEN
        -- A queue or partition was deleted while this push waited for it: begin again.
        RAISE EXCEPTION 'a partition of this push was deleted meanwhile' USING ERRCODE = 'serialization_failure';
    END IF;
    IF v_armed IS NOT NULL THEN
        INSERT INTO queen.cursors AS c (partition_id, group_id, due, moves)
        SELECT p.id, s.id, clock_timestamp(), s.moves
        FROM unnest(v_armed) AS w (id)
        JOIN queen.partitions p ON p.id = w.id
        JOIN queen.queues q ON q.id = p.queue_id
        JOIN queen.groups s ON s.tenant = q.tenant AND s.queue = q.name
        ORDER BY p.id, s.id
        ON CONFLICT (partition_id, group_id) DO UPDATE SET due = excluded.due WHERE c.due IS NULL;
    END IF;
    IF v_made THEN
        -- The queue may be made anew, and the deletion of its former life may not have come to raise the
        -- floor. After every other lock: readers wait for this one.
        PERFORM queen.raise_floor(p_tenant, g.queue)
        FROM (SELECT DISTINCT u.queue FROM unnest(p_queues) AS u (queue)) g;
    END IF;
    RETURN v_ids;
END
$$;

-- Gives a group cursors in the next p_limit partitions of its queue that are older than itself, or than
-- its last move.
CREATE OR REPLACE FUNCTION queen.meet(p_group bigint, p_queue bigint, p_limit integer) RETURNS void
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

-- As in V9.
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

-- Moves a group to the first record from p_since on, in every partition of its queue, at once: cursors
-- follow as they are met. Gives back in how many that will be, p_most at most, or NULL when there is no
-- such group.
DROP FUNCTION queen.seek(uuid, text, text, timestamptz);
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

-- As in V6.
CREATE OR REPLACE FUNCTION queen.completed_to(p_partition bigint) RETURNS bigint
LANGUAGE sql STABLE AS $$
    SELECT min(CASE WHEN c.moves = s.moves THEN coalesce(c.next_offset, 0) ELSE 0 END)
    FROM queen.partitions p
    JOIN queen.queues q ON q.id = p.queue_id
    JOIN queen.groups s ON s.tenant = q.tenant AND s.queue = q.name
    LEFT JOIN queen.cursors c ON c.partition_id = p.id AND c.group_id = s.id
    WHERE p.id = p_partition
$$;

-- As in V6.
CREATE OR REPLACE FUNCTION queen.delete_queue(p_tenant uuid, p_name text) RETURNS boolean
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_queue bigint;
BEGIN
    -- Waits for new partitions, whose rows refer to the queue's.
    PERFORM pg_advisory_xact_lock(1364525059, queen.queue_lock(p_tenant, p_name));
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
