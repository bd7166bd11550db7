-- Up to where every group of its queue has settled a partition: the offset below which everything is
-- complete. NULL when the queue has no group. A partition that a group has not met is not complete.
CREATE FUNCTION queen.completed_to(p_partition bigint) RETURNS bigint
LANGUAGE sql STABLE AS $$
    SELECT min(CASE WHEN c.moves = s.moves THEN coalesce(c.next_offset, 0) ELSE 0 END)
    FROM queen.partitions p
    JOIN queen.queues q ON q.id = p.queue_id
    JOIN queen.groups s ON s.tenant = q.tenant AND s.queue = q.name
    LEFT JOIN queen.cursors c ON c.partition_id = p.id AND c.group_id = s.id
    WHERE p.id = p_partition
$$;

-- Deletes a queue for everyone, whatever it holds: from its commit on the name is free. Its groups go at once,
-- what else is theirs and the queue's in the background. The caller raises the floor afterwards, in a transaction
-- of its own: only then is every push seen that the queue's readers could have seen.
CREATE FUNCTION queen.delete_queue(p_tenant uuid, p_name text) RETURNS boolean
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
