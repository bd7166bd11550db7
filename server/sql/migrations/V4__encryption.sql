-- Whether records of these queues may be stored in the clear. Raises an error when not, so that the
-- statement that asks writes nothing, in whatever order its parts run.
CREATE FUNCTION queen.takes_clear(p_tenant uuid, p_queues text[]) RETURNS boolean
LANGUAGE plpgsql STABLE AS $$
BEGIN
    IF EXISTS (
        SELECT 1
        FROM unnest(p_queues) AS w (queue)
        JOIN queen.queues q ON q.tenant = p_tenant AND q.name = w.queue
        WHERE q.options -> 'encryptionEnabled' = 'true'::jsonb
    ) THEN
        RAISE EXCEPTION 'a queue of this push is encrypted at rest' USING ERRCODE = 'QS001';
    END IF;
    RETURN true;
END
$$;
