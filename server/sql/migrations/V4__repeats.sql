-- Transaction ids that producers gave, for as long as a repetition counts as one. They are kept as pushes bring
-- them, a row per push and partition: a row per id would cost a push more than all the rest of it. Which ids are
-- not there is known to the broker (log/recent.rs), and looked up only where it does not know.

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

-- Ids that the brokers have no room to remember, one by one (queen.index_ids).
--   id             stands for the id (log/repeats.rs)
--   record_offset  the record that has it
CREATE TABLE queen.transaction_ids (
    partition_id  bigint NOT NULL,
    id            uuid NOT NULL,
    record_offset bigint NOT NULL,
    expires_at    timestamptz NOT NULL,
    PRIMARY KEY (partition_id, id)
) WITH (autovacuum_vacuum_scale_factor = 0.05);
CREATE INDEX transaction_ids_by_expiry ON queen.transaction_ids (expires_at);

-- How long ids count in a queue with these options, in seconds.
CREATE FUNCTION queen.dedup_window(p_options jsonb) RETURNS integer
LANGUAGE sql IMMUTABLE AS $$ SELECT (queen.effective(p_options) ->> 'dedupWindowSeconds')::integer $$;

-- Whether records of these queues may repeat a transaction id. Raises an error when not, as
-- queen.takes_clear does.
CREATE FUNCTION queen.takes_repeats(p_tenant uuid, p_queues text[]) RETURNS boolean
LANGUAGE plpgsql STABLE AS $$
BEGIN
    IF EXISTS (
        SELECT 1
        FROM unnest(p_queues) AS w (queue)
        LEFT JOIN queen.queues q ON q.tenant = p_tenant AND q.name = w.queue
        WHERE queen.dedup_window(q.options) > 0
    ) THEN
        RAISE EXCEPTION 'a queue of this push takes no repeated ids' USING ERRCODE = 'QS002';
    END IF;
    RETURN true;
END
$$;

-- Those of the pushed ids that are in the given ranges of offsets, by their place in the push. As many
-- ids as there are on either side meet once: this is a hash join, which the broker's sessions do not
-- choose elsewhere. Either side is put together before they meet: joined row by row, the pushed ids would be
-- hashed anew for every row of ids.
CREATE FUNCTION queen.repeated_ids(
    p_now timestamptz, r_group integer[], r_partition bigint[], r_from bigint[], r_upto bigint[],
    p_counts bigint[], i_start integer[], i_ids uuid[]
) RETURNS TABLE (g integer, rel bigint, record_offset bigint)
LANGUAGE plpgsql STABLE
SET enable_hashjoin = on SET enable_nestloop = off AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    -- As a column, so that a group's ids are cut out of it: of a variable they are cut out of a copy of all.
    WITH flat AS MATERIALIZED (
        SELECT i_ids AS ids
    ), pushed AS MATERIALIZED (
        SELECT s.g::integer AS g, generate_series(0, s.records - 1) AS rel,
               unnest(f.ids[s.start : s.start + s.records::integer - 1]) AS id
        FROM flat f CROSS JOIN unnest(i_start, p_counts) WITH ORDINALITY AS s (start, records, g)
        WHERE s.start > 0
    ), known AS MATERIALIZED (
        SELECT r.g, c.base_offset, generate_subscripts(c.ids, 1) - 1 AS rel, unnest(c.ids) AS id
        FROM flat f CROSS JOIN unnest(r_group, r_partition, r_from, r_upto) AS r (g, partition_id, low, high)
        -- Kept apart, so that it is cut out once per range and not for each of its rows.
        CROSS JOIN LATERAL (
            SELECT f.ids[i_start[r.g] : i_start[r.g] + p_counts[r.g]::integer - 1] AS ids OFFSET 0
        ) w
        -- Ordered, so that it stays a look per range.
        CROSS JOIN LATERAL (
            SELECT t.base_offset, t.ids FROM queen.recent_ids t
            WHERE t.partition_id = r.partition_id AND t.base_offset >= r.low AND t.base_offset < r.high
              AND t.expires_at > p_now
              -- A few ids are compared with a row where it lies; one that has none of them joins nothing.
              AND (p_counts[r.g] > 32 OR t.ids && w.ids)
            ORDER BY t.base_offset
        ) c
    )
    SELECT d.g, d.rel, k.base_offset + k.rel
    FROM pushed d JOIN known k ON k.g = d.g AND k.id = d.id
    WHERE d.id <> '00000000-0000-0000-0000-000000000000';
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
