-- Transaction ids are kept as pushes bring them: a row per push and partition. A row per id cost a push
-- more than all the rest of it. Which ids are not there is known to the broker (log/recent.rs), and
-- looked up only where it does not know.

-- Ids of the records from base_offset on, one each; zeros stand for one that no producer gave.
--   records     how many that are
--   expires_at  when a repetition no longer counts as one
CREATE TABLE queen.recent_ids (
    partition_id bigint NOT NULL,
    base_offset  bigint NOT NULL,
    records      integer NOT NULL,
    expires_at   timestamptz NOT NULL,
    ids          uuid[] NOT NULL,
    PRIMARY KEY (partition_id, base_offset)
) WITH (autovacuum_vacuum_scale_factor = 0.05);
-- Hashes do not compress.
ALTER TABLE queen.recent_ids ALTER COLUMN ids SET STORAGE EXTERNAL;
CREATE INDEX recent_ids_by_expiry ON queen.recent_ids (expires_at);

COMMENT ON TABLE queen.transaction_ids IS
    'Ids that the brokers have no room to remember, one by one (queen.index_ids)';

-- Those of the pushed ids that are in the given ranges of offsets, by their place in the push. As many
-- ids as there are on either side meet once: this is a hash join, which the broker's sessions do not
-- choose elsewhere.
CREATE FUNCTION queen.repeated_ids(
    p_now timestamptz, r_group integer[], r_partition bigint[], r_from bigint[], r_upto bigint[],
    p_counts bigint[], i_start integer[], i_ids uuid[]
) RETURNS TABLE (g integer, rel bigint, record_offset bigint)
LANGUAGE plpgsql STABLE
SET enable_hashjoin = on SET enable_nestloop = off AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    SELECT d.g, d.rel, k.record_offset
    FROM (
        SELECT s.g::integer AS g, u.n - 1 AS rel, u.id
        FROM unnest(i_start, p_counts) WITH ORDINALITY AS s (start, records, g)
        CROSS JOIN LATERAL unnest(i_ids[s.start : s.start + s.records::integer - 1])
            WITH ORDINALITY AS u (id, n)
        WHERE s.start > 0 AND u.id <> '00000000-0000-0000-0000-000000000000'
    ) d
    JOIN (
        SELECT r.g, c.base_offset + u.n - 1 AS record_offset, u.id
        FROM unnest(r_group, r_partition, r_from, r_upto) AS r (g, partition_id, low, high)
        CROSS JOIN LATERAL (
            SELECT t.base_offset, t.ids FROM queen.recent_ids t
            WHERE t.partition_id = r.partition_id AND t.base_offset >= r.low AND t.base_offset < r.high
              AND t.expires_at > p_now
            ORDER BY t.base_offset
        ) c
        CROSS JOIN LATERAL unnest(c.ids) WITH ORDINALITY AS u (id, n)
        WHERE u.id <> '00000000-0000-0000-0000-000000000000'
    ) k ON k.g = d.g AND k.id = d.id;
END
$$;

DROP FUNCTION queen.push_once(
    uuid, text[], text[], bigint[], integer[], bigint[], integer[], integer[], bigint[], bytea[],
    integer[], integer[], bigint[], uuid[], integer[]);

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
        SELECT 1, s.g::integer, u.n - 1, p.life, t.record_offset, true, p.id, NULL::bigint,
               NULL::timestamptz, v_now, v_server
        FROM unnest(i_start, p_counts) WITH ORDINALITY AS s (start, records, g)
        CROSS JOIN LATERAL unnest(i_ids[s.start : s.start + s.records::integer - 1])
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

    INSERT INTO queen.recent_ids (partition_id, base_offset, records, expires_at, ids)
    SELECT v_ids[s.g], v_bases[s.g], s.records, v_now + make_interval(secs => v_windows[s.g]),
           i_ids[s.start : s.start + s.records::integer - 1]
    FROM unnest(i_start, p_counts) WITH ORDINALITY AS s (start, records, g)
    WHERE s.start > 0 AND v_windows[s.g] > 0;

    RETURN QUERY
    SELECT 0, w.ord::integer, NULL::bigint, w.life, w.base_offset, w.seconds > 0, w.id, NULL::bigint,
           v_now + make_interval(secs => w.seconds), v_now, v_server
    FROM unnest(v_ids, v_lives, v_bases, v_windows) WITH ORDINALITY AS w (id, life, base_offset, seconds, ord)
    ORDER BY w.ord;
END
$$;

-- Moves about p_ids of a partition's recent ids, the oldest ones, below p_below, to where each is found by
-- itself. A push that looks at the recent ones first finds an id here or there. Gives back how many rows it
-- found there, those that others took from under it included: with 0, and only then, none is left.
CREATE FUNCTION queen.index_ids(p_partition bigint, p_below bigint, p_ids bigint) RETURNS bigint
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_now  timestamptz := clock_timestamp();
    v_rows bigint;
BEGIN
    WITH oldest AS MATERIALIZED (
        SELECT o.base_offset FROM (
            SELECT t.base_offset, sum(t.records) OVER (ORDER BY t.base_offset) - t.records AS before
            FROM (
                SELECT r.base_offset, r.records FROM queen.recent_ids r
                WHERE r.partition_id = p_partition AND r.base_offset < p_below
                ORDER BY r.base_offset LIMIT p_ids
            ) t
        ) o
        WHERE o.before < p_ids
    ), locked AS MATERIALIZED (
        SELECT r.base_offset FROM oldest o
        JOIN queen.recent_ids r ON r.partition_id = p_partition AND r.base_offset = o.base_offset
        ORDER BY r.base_offset FOR UPDATE OF r
    ), gone AS (
        DELETE FROM queen.recent_ids r USING locked l
        WHERE r.partition_id = p_partition AND r.base_offset = l.base_offset
        RETURNING r.base_offset, r.expires_at, r.ids
    ), kept AS (
        INSERT INTO queen.transaction_ids AS t (partition_id, id, record_offset, expires_at)
        -- Where the clock was set back, an id may count although it was pushed anew.
        SELECT DISTINCT ON (u.id) p_partition, u.id, g.base_offset + u.n - 1, g.expires_at
        FROM gone g CROSS JOIN LATERAL unnest(g.ids) WITH ORDINALITY AS u (id, n)
        WHERE g.expires_at > v_now AND u.id <> '00000000-0000-0000-0000-000000000000'
        ORDER BY u.id, g.expires_at DESC
        ON CONFLICT (partition_id, id) DO UPDATE
        SET record_offset = excluded.record_offset, expires_at = excluded.expires_at
        WHERE t.expires_at < excluded.expires_at
    )
    SELECT count(*) INTO v_rows FROM oldest;
    RETURN v_rows;
END
$$;
