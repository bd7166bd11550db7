-- Transaction ids that producers gave, for as long as a repetition counts as one.
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

CREATE FUNCTION queen.dedup_window(p_options jsonb) RETURNS integer
LANGUAGE sql IMMUTABLE AS $$ SELECT coalesce((p_options ->> 'dedupWindowSeconds')::integer, 3600) $$;

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

-- As queen.push, with the transaction ids that producers gave: "d_item" is the place of a record in the
-- request, "d_first" the place of an earlier one with the same id and partition.
--
-- Where one of them was pushed within its queue's window nothing is written, and the repetitions come
-- back: an item with the life and offset of the record that is there, or, without a life, the place
-- of the earlier item. Else a row per group, without an item; "takes" says whether ids count.
--
-- Whoever pushes to a partition holds its row from the look to the commit, so no id is written twice.
CREATE FUNCTION queen.push_once(
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
    FROM unnest(p_queues) WITH ORDINALITY AS w (queue, ord)
    JOIN queen.queues q ON q.tenant = p_tenant AND q.name = w.queue;

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
    FROM queen.push(p_tenant, p_queues, p_partitions, p_counts, s_group, s_rel, s_records, s_raw,
                    s_payload, s_block) WITH ORDINALITY AS w (life, base_offset, ord);

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
