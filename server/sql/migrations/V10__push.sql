-- The floor is raised by the push that makes a queue's first partitions, once it holds them: a trigger
-- held the floor while the push still waited for partitions, and every reader waited with it.
DROP TRIGGER begin_life ON queen.queues;
DROP FUNCTION queen.begin_life();

-- As in V5, exactly: "last_write_at" bounds a ts from above by less than a second, so the newest ts is
-- among the partitions of the newest second. More than it would move the ts of every queue into the future.
CREATE OR REPLACE FUNCTION queen.raise_floor(p_tenant uuid, p_name text) RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    UPDATE queen.floor f SET ts = m.ts
    FROM (
        SELECT max(greatest(t.second, n.last)) + interval '1 microsecond' AS ts
        FROM queen.deleted_queues d
        CROSS JOIN LATERAL (
            SELECT p.last_write_at AS second FROM queen.partitions p
            WHERE p.queue_id = d.queue_id ORDER BY p.last_write_at DESC LIMIT 1
        ) t
        CROSS JOIN LATERAL (
            SELECT max(p.last_ts) AS last FROM queen.partitions p
            WHERE p.queue_id = d.queue_id AND p.last_write_at = t.second
        ) n
        WHERE d.tenant = p_tenant AND d.name = p_name
    ) m
    WHERE f.ts < m.ts;
END
$$;

-- The ids of partitions, in order; NULL for one that is not there.
CREATE FUNCTION queen.partition_ids(p_tenant uuid, p_queues text[], p_partitions text[]) RETURNS bigint[]
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_ids bigint[];
BEGIN
    -- Ordered, so that only the index of the names will do: a plan that is made while the tables are
    -- small stays, and another index would have every partition of the queue read. Bounded on both
    -- sides, so that the rows of a push under way are not stepped over one by one.
    SELECT array_agg(CASE WHEN p.name = g.part THEN p.id END ORDER BY g.ord) INTO v_ids
    FROM unnest(p_queues, p_partitions) WITH ORDINALITY AS g (queue, part, ord)
    LEFT JOIN queen.queues q ON q.tenant = p_tenant AND q.name = g.queue
    LEFT JOIN LATERAL (
        SELECT n.id, n.name FROM queen.partitions n
        WHERE n.queue_id = q.id AND n.name >= g.part AND n.name <= g.part ORDER BY n.name LIMIT 1
    ) p ON true;
    RETURN v_ids;
END
$$;

-- As in V6; "begin again" covers a queue that was deleted while its partitions were waited for.
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
        INSERT INTO queen.cursors AS c (partition_id, group_id, due)
        SELECT p.id, s.id, clock_timestamp()
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

-- Writes a push to the partitions that queen.allocate gave back.
--
-- VOLATILE on purpose: under READ COMMITTED each statement below has a snapshot of its own, and the
-- floor must be read by one that begins after the allocator rows are locked.
CREATE FUNCTION queen.append(
    p_ids bigint[], p_counts bigint[],
    s_group integer[], s_rel bigint[], s_records integer[], s_raw integer[], s_payload bigint[],
    s_block bytea[]
) RETURNS TABLE (life uuid, base_offset bigint)
LANGUAGE plpgsql VOLATILE AS $$
#variable_conflict use_column
DECLARE
    v_lives uuid[];
    v_bases bigint[];
    v_ts    timestamptz[];
    v_now   timestamptz;
BEGIN
    SELECT greatest(clock_timestamp(), transaction_timestamp(), f.ts) INTO STRICT v_now FROM queen.floor f;

    WITH moved AS (
        UPDATE queen.partitions p
        SET next_offset   = p.next_offset + g.n,
            last_ts       = greatest(v_now, p.last_ts),
            last_write_at = greatest(p.last_write_at, date_trunc('second', greatest(v_now, p.last_ts))),
            armed         = false
        FROM unnest(p_ids, p_counts) WITH ORDINALITY AS g (id, n, ord)
        WHERE p.id = g.id
        RETURNING g.ord, p.life, p.next_offset - g.n AS base, p.last_ts
    )
    SELECT array_agg(m.life ORDER BY m.ord), array_agg(m.base ORDER BY m.ord), array_agg(m.last_ts ORDER BY m.ord)
    INTO v_lives, v_bases, v_ts
    FROM moved m;

    INSERT INTO queen.segments (partition_id, base_offset, ts, payload_bytes, raw_bytes, records, block)
    SELECT p_ids[s.g], v_bases[s.g] + s.rel, v_ts[s.g], s.payload, s.raw, s.n, s.block
    FROM unnest(s_group, s_rel, s_records, s_raw, s_payload, s_block) AS s (g, rel, n, raw, payload, block);

    RETURN QUERY SELECT * FROM unnest(v_lives, v_bases);
END
$$;

CREATE OR REPLACE FUNCTION queen.push(
    p_tenant uuid, p_queues text[], p_partitions text[], p_counts bigint[],
    s_group integer[], s_rel bigint[], s_records integer[], s_raw integer[], s_payload bigint[],
    s_block bytea[]
) RETURNS TABLE (life uuid, base_offset bigint)
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_ids bigint[];
BEGIN
    v_ids := queen.allocate(p_tenant, p_queues, p_partitions);
    RETURN QUERY
    SELECT * FROM queen.append(v_ids, p_counts, s_group, s_rel, s_records, s_raw, s_payload, s_block);
END
$$;

-- As in V7, over one allocation: what names mean may change while it waits.
CREATE OR REPLACE FUNCTION queen.push_once(
    p_tenant uuid, p_queues text[], p_partitions text[], p_counts bigint[],
    s_group integer[], s_rel bigint[], s_records integer[], s_raw integer[], s_payload bigint[],
    s_block bytea[],
    d_item integer[], d_group integer[], d_rel bigint[], d_id uuid[], d_first integer[]
) RETURNS TABLE (life uuid, base_offset bigint, item integer, takes boolean)
LANGUAGE plpgsql VOLATILE AS $$
#variable_conflict use_column
DECLARE
    v_ids     bigint[];
    v_windows integer[];
    v_lives   uuid[];
    v_bases   bigint[];
    v_now     timestamptz;
    v_there   bigint;
    v_past    bigint;
BEGIN
    v_ids := queen.allocate(p_tenant, p_queues, p_partitions);
    v_now := clock_timestamp();
    SELECT array_agg(queen.dedup_window(q.options) ORDER BY w.ord) INTO v_windows
    FROM unnest(v_ids) WITH ORDINALITY AS w (id, ord)
    JOIN queen.partitions p ON p.id = w.id
    JOIN queen.queues q ON q.id = p.queue_id;

    SELECT count(*) FILTER (WHERE t.expires_at > v_now), count(*) FILTER (WHERE t.expires_at <= v_now)
    INTO v_there, v_past
    FROM unnest(d_group, d_id) AS d (g, id)
    JOIN queen.transaction_ids t ON t.partition_id = v_ids[d.g] AND t.id = d.id
    WHERE v_windows[d.g] > 0;
    SELECT v_there + count(*) INTO v_there
    FROM unnest(d_group, d_first) AS d (g, prior) WHERE d.prior IS NOT NULL AND v_windows[d.g] > 0;
    IF v_there > 0 THEN
        RETURN QUERY
        SELECT CASE WHEN d.prior IS NULL THEN p.life END, coalesce(t.record_offset, d.prior), d.item, true
        FROM unnest(d_item, d_group, d_id, d_first) AS d (item, g, id, prior)
        LEFT JOIN queen.transaction_ids t
            ON t.partition_id = v_ids[d.g] AND t.id = d.id AND t.expires_at > v_now AND d.prior IS NULL
        LEFT JOIN queen.partitions p ON p.id = t.partition_id
        WHERE v_windows[d.g] > 0 AND (d.prior IS NOT NULL OR t.id IS NOT NULL);
        RETURN;
    END IF;
    IF v_past > 0 THEN
        DELETE FROM queen.transaction_ids t USING unnest(d_group, d_id) AS d (g, id)
        WHERE t.partition_id = v_ids[d.g] AND t.id = d.id;
    END IF;

    SELECT array_agg(w.life ORDER BY w.ord), array_agg(w.base_offset ORDER BY w.ord) INTO v_lives, v_bases
    FROM queen.append(v_ids, p_counts, s_group, s_rel, s_records, s_raw, s_payload, s_block)
        WITH ORDINALITY AS w (life, base_offset, ord);

    INSERT INTO queen.transaction_ids (partition_id, id, record_offset, expires_at)
    SELECT v_ids[d.g], d.id, v_bases[d.g] + d.rel, v_now + make_interval(secs => v_windows[d.g])
    FROM unnest(d_group, d_rel, d_id) AS d (g, rel, id)
    WHERE v_windows[d.g] > 0;

    RETURN QUERY
    SELECT w.life, w.base_offset, NULL::integer, w.seconds > 0
    FROM unnest(v_lives, v_bases, v_windows) WITH ORDINALITY AS w (life, base_offset, seconds, ord)
    ORDER BY w.ord;
END
$$;

-- Whether records of these queues may be sealed, and their ids be compared by the key. Raises an error
-- when not, as queen.takes_clear does: brokers must agree on what stands for an id.
CREATE FUNCTION queen.takes_sealed(p_tenant uuid, p_queues text[]) RETURNS boolean
LANGUAGE plpgsql STABLE AS $$
BEGIN
    IF cardinality(p_queues) > 0 AND EXISTS (
        SELECT 1
        FROM unnest(p_queues) AS w (queue)
        LEFT JOIN queen.queues q ON q.tenant = p_tenant AND q.name = w.queue
        WHERE (q.options -> 'encryptionEnabled') IS DISTINCT FROM 'true'::jsonb
    ) THEN
        RAISE EXCEPTION 'a queue of this push is not encrypted at rest' USING ERRCODE = 'QS003';
    END IF;
    RETURN true;
END
$$;
