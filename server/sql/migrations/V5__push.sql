-- Whether records of these queues may be stored in the clear. Raises an error when not, so that the
-- statement that asks writes nothing, in whatever order its parts run.
CREATE FUNCTION queen.takes_clear(p_tenant uuid, p_queues text[]) RETURNS boolean
LANGUAGE plpgsql STABLE AS $$
BEGIN
    IF EXISTS (
        SELECT 1
        FROM unnest(p_queues) AS w (queue)
        JOIN queen.queues q ON q.tenant = p_tenant AND q.name = w.queue
        WHERE (queen.effective(q.options) ->> 'encryptionEnabled')::boolean
    ) THEN
        RAISE EXCEPTION 'a queue of this push is encrypted at rest' USING ERRCODE = 'QS001';
    END IF;
    RETURN true;
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
        WHERE NOT (queen.effective(q.options) ->> 'encryptionEnabled')::boolean
    ) THEN
        RAISE EXCEPTION 'a queue of this push is not encrypted at rest' USING ERRCODE = 'QS003';
    END IF;
    RETURN true;
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

-- Raises the floor F above every ts of the deleted queues of this name, so that a later life begins above the
-- former: exactly, since more than that would move the ts of every queue into the future. "last_write_at" bounds
-- a ts from above by less than a second, so the newest ts is among the partitions of the newest second.
CREATE FUNCTION queen.raise_floor(p_tenant uuid, p_name text) RETURNS void
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

-- Makes what of the queues and partitions is missing, and locks the partitions' rows for a push. Groups that have
-- read one of them to its end are told. Where one was deleted while it was waited for, the push begins again.
CREATE FUNCTION queen.allocate(p_tenant uuid, p_queues text[], p_partitions text[]) RETURNS bigint[]
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

-- Writes one push: all or nothing, in one transaction of one statement.
--
-- Groups are the distinct (queue, partition) pairs of the push; segments refer to their group by
-- its 1-based index, "rel" being the offset of the segment's first record within the group.
CREATE FUNCTION queen.push(
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

-- As queen.push, with the transaction ids that producers gave.
--
--   i_ids    an id per record of each group that has any, as in queen.recent_ids
--   i_start  where those of a group begin, counted from 1; 0 where it has none
--   i_twice  whether the group has an id twice
--   k_*      what of the partition's log has to be looked at: offsets k_from to k_upto - 1, for the
--            partition and the database server that the broker had in mind; else all. The last
--            bigint has no end
--   k_most   so many unknown ids are looked at
--
-- Where an id was pushed within its queue's window, or counts twice, or too much is unknown, nothing is
-- written. What comes back are rows of these kinds:
--   0  a group that was written, in order; "takes" says whether ids count
--   1  a record that repeats the one at record_offset
--   2  a group whose ids count, and that has one twice
--   3  a group of which "unknown" ids after k_from were looked at, or are too many to
--
-- Whoever pushes to a partition holds its row from the look to the commit, so no id is written twice.
CREATE FUNCTION queen.push_once(
    p_tenant uuid, p_queues text[], p_partitions text[], p_counts bigint[],
    s_group integer[], s_rel bigint[], s_records integer[], s_raw integer[], s_payload bigint[],
    s_block bytea[],
    i_start integer[], i_twice boolean[], i_ids uuid[],
    k_server timestamptz[], k_group integer[], k_partition bigint[], k_from bigint[], k_upto bigint[],
    k_most bigint
) RETURNS TABLE (
    kind integer, g integer, rel bigint, life uuid, record_offset bigint, takes boolean,
    partition_id bigint, unknown bigint, expires_at timestamptz, now timestamptz, server timestamptz
)
LANGUAGE plpgsql VOLATILE AS $$
#variable_conflict use_column
DECLARE
    v_ids     bigint[];
    v_windows integer[];
    v_lives   uuid[];
    v_bases   bigint[];
    v_now     timestamptz;
    v_server  timestamptz := pg_postmaster_start_time();
    r_group   integer[];
    r_from    bigint[];
    r_upto    bigint[];
    r_records bigint[];
    v_found   boolean := false;
    v_unknown bigint;
BEGIN
    v_ids := queen.allocate(p_tenant, p_queues, p_partitions);
    v_now := clock_timestamp();
    SELECT array_agg(queen.dedup_window(q.options) ORDER BY w.ord) INTO v_windows
    FROM unnest(v_ids) WITH ORDINALITY AS w (id, ord)
    JOIN queen.partitions p ON p.id = w.id
    JOIN queen.queues q ON q.id = p.queue_id;

    IF true = ANY (i_twice) THEN
        RETURN QUERY
        SELECT 2, t.ord::integer, NULL::bigint, NULL::uuid, NULL::bigint, true, NULL::bigint, NULL::bigint,
               NULL::timestamptz, v_now, v_server
        FROM unnest(i_twice) WITH ORDINALITY AS t (twice, ord) WHERE t.twice AND v_windows[t.ord] > 0;
        IF FOUND THEN
            RETURN;
        END IF;
    END IF;

    SELECT array_agg(r.g), array_agg(r.low), array_agg(r.high), array_agg(r.records),
           sum(r.records) FILTER (WHERE r.high = 9223372036854775807)
    INTO r_group, r_from, r_upto, r_records, v_unknown
    FROM (
        SELECT k.g, k.low, k.high, c.records
        FROM (
            SELECT u.g, CASE WHEN o.same THEN u.low ELSE 0 END AS low,
                   CASE WHEN o.same OR u.high = 9223372036854775807 THEN u.high ELSE 0 END AS high
            FROM unnest(k_server, k_group, k_partition, k_from, k_upto) AS u (server, g, partition_id, low, high)
            CROSS JOIN LATERAL (SELECT u.server = v_server AND u.partition_id = v_ids[u.g] AS same) o
            WHERE v_windows[u.g] > 0
        ) k
        CROSS JOIN LATERAL (
            SELECT sum(t.records) AS records FROM queen.recent_ids t
            WHERE t.partition_id = v_ids[k.g] AND t.base_offset >= k.low AND t.base_offset < k.high
              AND t.expires_at > v_now
        ) c
        WHERE c.records > 0
    ) r;
    IF r_group IS NOT NULL THEN
        RETURN QUERY
        SELECT 3, r.g, NULL::bigint, NULL::uuid, NULL::bigint, true, v_ids[r.g], r.records,
               v_now + make_interval(secs => v_windows[r.g]), v_now, v_server
        FROM unnest(r_group, r_upto, r_records) AS r (g, high, records) WHERE r.high = 9223372036854775807;
        IF v_unknown > k_most THEN
            RETURN;
        END IF;
        RETURN QUERY
        SELECT 1, d.g, d.rel, p.life, d.record_offset, true, p.id, NULL::bigint,
               NULL::timestamptz, v_now, v_server
        FROM queen.repeated_ids(v_now, r_group,
            ARRAY(SELECT v_ids[r.g] FROM unnest(r_group) WITH ORDINALITY AS r (g, ord) ORDER BY r.ord),
            r_from, r_upto, p_counts, i_start, i_ids) d
        JOIN queen.partitions p ON p.id = v_ids[d.g];
        v_found := FOUND;
    END IF;
    -- After the look at the recent ones: that is where they come from.
    IF EXISTS (
        SELECT 1 FROM unnest(v_ids, i_start) AS w (id, start)
        CROSS JOIN LATERAL (SELECT 1 FROM queen.transaction_ids t WHERE t.partition_id = w.id LIMIT 1) t
        WHERE w.start > 0
    ) THEN
        RETURN QUERY
        WITH flat AS MATERIALIZED (SELECT i_ids AS ids)
        SELECT 1, s.g::integer, u.n - 1, p.life, t.record_offset, true, p.id, NULL::bigint,
               NULL::timestamptz, v_now, v_server
        FROM flat f CROSS JOIN unnest(i_start, p_counts) WITH ORDINALITY AS s (start, records, g)
        CROSS JOIN LATERAL unnest(f.ids[s.start : s.start + s.records::integer - 1])
            WITH ORDINALITY AS u (id, n)
        JOIN queen.transaction_ids t ON t.partition_id = v_ids[s.g] AND t.id = u.id AND t.expires_at > v_now
        JOIN queen.partitions p ON p.id = t.partition_id
        WHERE s.start > 0 AND v_windows[s.g] > 0;
        v_found := v_found OR FOUND;
    END IF;
    IF v_found THEN
        RETURN;
    END IF;

    SELECT array_agg(w.life ORDER BY w.ord), array_agg(w.base_offset ORDER BY w.ord) INTO v_lives, v_bases
    FROM queen.append(v_ids, p_counts, s_group, s_rel, s_records, s_raw, s_payload, s_block)
        WITH ORDINALITY AS w (life, base_offset, ord);

    -- As a column: see queen.repeated_ids.
    WITH flat AS MATERIALIZED (SELECT i_ids AS ids)
    INSERT INTO queen.recent_ids (partition_id, base_offset, records, expires_at, ids)
    SELECT v_ids[s.g], v_bases[s.g], s.records, v_now + make_interval(secs => v_windows[s.g]),
           f.ids[s.start : s.start + s.records::integer - 1]
    FROM flat f CROSS JOIN unnest(i_start, p_counts) WITH ORDINALITY AS s (start, records, g)
    WHERE s.start > 0 AND v_windows[s.g] > 0;

    RETURN QUERY
    SELECT 0, w.ord::integer, NULL::bigint, w.life, w.base_offset, w.seconds > 0, w.id, NULL::bigint,
           v_now + make_interval(secs => w.seconds), v_now, v_server
    FROM unnest(v_ids, v_lives, v_bases, v_windows) WITH ORDINALITY AS w (id, life, base_offset, seconds, ord)
    ORDER BY w.ord;
END
$$;
