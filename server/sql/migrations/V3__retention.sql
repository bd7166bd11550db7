-- Partitions whose row is gone. Their segments are reached by nobody, and go in small steps.
CREATE TABLE queen.trash (partition_id bigint PRIMARY KEY);

-- Deletes a queue at once, for everyone: its partitions' rows go here, their segments later.
--
-- A later life of a partition must begin above the former's last ts. Nobody can make the queue or a
-- partition of it anew before this commits, and every push reads the floor after it holds its locks.
CREATE FUNCTION queen.delete_queue(p_tenant uuid, p_name text) RETURNS boolean
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_queue bigint;
    v_last  timestamptz;
BEGIN
    -- Held against new partitions, whose rows refer to this one.
    SELECT q.id INTO v_queue FROM queen.queues q WHERE q.tenant = p_tenant AND q.name = p_name FOR UPDATE;
    IF v_queue IS NULL THEN
        RETURN false;
    END IF;
    -- In the order in which pushes lock them.
    PERFORM 1 FROM queen.partitions p WHERE p.queue_id = v_queue ORDER BY p.name FOR UPDATE;
    WITH gone AS (
        DELETE FROM queen.partitions p WHERE p.queue_id = v_queue RETURNING p.id, p.last_ts
    ), kept AS (
        INSERT INTO queen.trash (partition_id) SELECT g.id FROM gone g
    )
    SELECT max(g.last_ts) INTO v_last FROM gone g;
    DELETE FROM queen.queues q WHERE q.id = v_queue;
    -- Last, because every answer with safeTime writes this row too.
    UPDATE queen.floor SET ts = v_last + interval '1 microsecond' WHERE ts <= v_last;
    RETURN true;
END
$$;
