-- As in V11, with either side put together before they meet: joined row by row, the pushed ids were hashed
-- anew for every row of ids.
CREATE OR REPLACE FUNCTION queen.repeated_ids(
    p_now timestamptz, r_group integer[], r_partition bigint[], r_from bigint[], r_upto bigint[],
    p_counts bigint[], i_start integer[], i_ids uuid[]
) RETURNS TABLE (g integer, rel bigint, record_offset bigint)
LANGUAGE plpgsql STABLE
SET enable_hashjoin = on SET enable_nestloop = off AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    WITH pushed AS MATERIALIZED (
        SELECT s.g::integer AS g, generate_series(0, s.records - 1) AS rel,
               unnest(i_ids[s.start : s.start + s.records::integer - 1]) AS id
        FROM unnest(i_start, p_counts) WITH ORDINALITY AS s (start, records, g)
        WHERE s.start > 0
    ), known AS MATERIALIZED (
        SELECT r.g, c.base_offset, generate_subscripts(c.ids, 1) - 1 AS rel, unnest(c.ids) AS id
        FROM unnest(r_group, r_partition, r_from, r_upto) AS r (g, partition_id, low, high)
        -- Ordered, so that it stays a look per range.
        CROSS JOIN LATERAL (
            SELECT t.base_offset, t.ids FROM queen.recent_ids t
            WHERE t.partition_id = r.partition_id AND t.base_offset >= r.low AND t.base_offset < r.high
              AND t.expires_at > p_now
            ORDER BY t.base_offset
        ) c
    )
    SELECT d.g, d.rel, k.base_offset + k.rel
    FROM pushed d JOIN known k ON k.g = d.g AND k.id = d.id
    WHERE d.id <> '00000000-0000-0000-0000-000000000000';
END
$$;
