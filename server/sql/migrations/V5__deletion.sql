-- A deleted queue has no tenant, so that no name finds it. Its row stays until its partitions, which
-- refer to it, have been removed in small steps.
ALTER TABLE queen.queues ALTER COLUMN tenant DROP NOT NULL;

CREATE TABLE queen.deleted_queues (
    queue_id bigint PRIMARY KEY REFERENCES queen.queues (id),
    tenant   uuid NOT NULL,
    name     text COLLATE "C" NOT NULL
);
CREATE INDEX deleted_queues_by_name ON queen.deleted_queues (tenant, name);

-- Raises the floor F above every ts of the deleted queues of this name, so that a later life begins
-- above the former. "last_write_at" bounds the ts from above by less than a second; the partitions
-- of the newest second are looked at one by one while they are few.
CREATE FUNCTION queen.raise_floor(p_tenant uuid, p_name text) RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    UPDATE queen.floor f SET ts = m.ts
    FROM (
        SELECT max(CASE WHEN n.known < 1000 THEN greatest(t.second, n.last) + interval '1 microsecond'
                        ELSE t.second + interval '1 second' END) AS ts
        FROM queen.deleted_queues d
        CROSS JOIN LATERAL (
            SELECT p.last_write_at AS second FROM queen.partitions p
            WHERE p.queue_id = d.queue_id ORDER BY p.last_write_at DESC LIMIT 1
        ) t
        CROSS JOIN LATERAL (
            SELECT count(*) AS known, max(l.last_ts) AS last
            FROM (
                SELECT p.last_ts FROM queen.partitions p
                WHERE p.queue_id = d.queue_id AND p.last_write_at = t.second LIMIT 1000
            ) l
        ) n
        WHERE d.tenant = p_tenant AND d.name = p_name
    ) m
    WHERE f.ts < m.ts;
END
$$;

-- Deletes a queue for everyone, whatever it holds: from its commit on the name is free. The caller
-- raises the floor afterwards, in a transaction of its own: only then is every push seen that the
-- queue's readers could have seen.
CREATE OR REPLACE FUNCTION queen.delete_queue(p_tenant uuid, p_name text) RETURNS boolean
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_queue bigint;
BEGIN
    -- Waits for new partitions, whose rows refer to this one.
    SELECT q.id INTO v_queue FROM queen.queues q WHERE q.tenant = p_tenant AND q.name = p_name FOR UPDATE;
    IF v_queue IS NULL THEN
        RETURN false;
    END IF;
    INSERT INTO queen.deleted_queues (queue_id, tenant, name) VALUES (v_queue, p_tenant, p_name);
    UPDATE queen.queues q SET tenant = NULL WHERE q.id = v_queue;
    RETURN true;
END
$$;

-- A queue made anew while the deletion of its former life has not come to raise the floor, or was
-- killed before that, raises it itself. After the insert: by then the deletion has committed.
CREATE FUNCTION queen.begin_life() RETURNS trigger
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    PERFORM queen.raise_floor(NEW.tenant, NEW.name);
    RETURN NULL;
END
$$;
CREATE TRIGGER begin_life AFTER INSERT ON queen.queues
    FOR EACH ROW EXECUTE FUNCTION queen.begin_life();
