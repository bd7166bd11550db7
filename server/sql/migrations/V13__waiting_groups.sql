-- A group may be there before its queue. How many of them one tenant may have is bounded: names of queues
-- that never come cost nothing to think of.

-- Whether the queue was not there when the group was subscribed; it may have come since.
ALTER TABLE queen.groups ADD COLUMN waits boolean NOT NULL DEFAULT false;
UPDATE queen.groups s SET waits = true
WHERE NOT EXISTS (SELECT 1 FROM queen.queues q WHERE q.tenant = s.tenant AND q.name = s.queue);
CREATE INDEX groups_that_wait ON queen.groups (tenant, queue) WHERE waits;

DROP FUNCTION queen.subscribe(uuid, text, text, timestamptz);

-- As in V6. Where the queue is not there and p_most groups of such queues are, nothing is done and QS004
-- raised.
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

-- How many groups of a tenant wait, p_most at most.
CREATE FUNCTION queen.waiting_groups(p_tenant uuid, p_most bigint) RETURNS bigint
LANGUAGE sql VOLATILE AS $$
    SELECT count(*) FROM (
        SELECT 1 FROM queen.groups s WHERE s.tenant = p_tenant AND s.waits LIMIT p_most
    ) l
$$;
