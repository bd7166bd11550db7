-- Consumer groups. docs/broker.md, "Consumers", says what holds; here is how.
--
-- Locks are taken in this order and waited for in no other: queue (queen.queue_lock), partitions by
-- (queue, name), cursors by (partition, group), floor. Taking a record never waits for a push: where it
-- needs a partition's row it takes it only if it is free.

-- A group of one queue, which may be subscribed before the queue is there.
--   since   records with a ts below it are not for this group
--   met_to  name of the last partition that was given a cursor; NULL before the first
--   met     every partition older than the group has a cursor; younger ones get theirs with a push
--   moves   how often the group was moved. A cursor of an earlier move stands nowhere: it holds no lease, and what
--           is taken by it begins where the group does. Groups meet the partitions with such cursors anew
--   waits   whether the queue was not there when the group was subscribed; it may have come since
CREATE TABLE queen.groups (
    id         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    tenant     uuid NOT NULL,
    queue      text COLLATE "C" NOT NULL,
    name       text COLLATE "C" NOT NULL,
    since      timestamptz NOT NULL,
    met_to     text COLLATE "C",
    met        boolean NOT NULL DEFAULT false,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    moves      integer NOT NULL DEFAULT 0,
    waits      boolean NOT NULL DEFAULT false,
    UNIQUE (tenant, queue, name)
);

-- Groups of queues that are not there: how many one tenant may have is bounded.
CREATE INDEX groups_that_wait ON queen.groups (tenant, queue) WHERE waits;

-- Where a group stands in a partition.
--   next_offset    everything below it is settled; NULL until the first look
--   due            when there may be something to take: at once, or when the lease ends;
--                  NULL when all is read and the partition is armed
--   lease_id       who has taken lease_from to lease_to - 1; it holds until "due"
--   failed_offset  the record that failed last, and how often in a row
--   moves          the move of the group that it belongs to
CREATE TABLE queen.cursors (
    partition_id  bigint NOT NULL,
    group_id      bigint NOT NULL,
    next_offset   bigint,
    due           timestamptz,
    lease_id      uuid,
    lease_from    bigint,
    lease_to      bigint,
    failed_offset bigint,
    failures      integer NOT NULL DEFAULT 0,
    moves         integer NOT NULL DEFAULT 0,
    PRIMARY KEY (partition_id, group_id)
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.05);

CREATE INDEX cursors_by_due ON queen.cursors (group_id, due);
CREATE INDEX cursors_by_lease ON queen.cursors (lease_id) WHERE lease_id IS NOT NULL;

-- Groups that are gone, and whose cursors go in small steps.
CREATE TABLE queen.deleted_groups (
    group_id   bigint PRIMARY KEY,
    deleted_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- Records that were given up on. "block" holds one record as a segment would, sealed where the
-- queue is; "id_hash" finds it by its transaction id.
CREATE TABLE queen.dead_letters (
    id            bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    queue_id      bigint NOT NULL,
    life          uuid NOT NULL,
    partition     text COLLATE "C" NOT NULL,
    group_name    text COLLATE "C" NOT NULL,
    record_offset bigint NOT NULL,
    id_hash       uuid NOT NULL,
    ts            timestamptz NOT NULL,
    failures      integer NOT NULL,
    reason        text,
    failed_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    raw_bytes     integer NOT NULL,
    block         bytea NOT NULL
);
ALTER TABLE queen.dead_letters ALTER COLUMN block SET STORAGE EXTERNAL;
CREATE INDEX dead_letters_by_queue ON queen.dead_letters (queue_id, group_name, id);
CREATE INDEX dead_letters_by_record ON queen.dead_letters (life, id_hash);

-- What stands for a queue among the advisory locks of the class 1364525059. It is shared by pushes that
-- make partitions, and held alone by whoever has to see all of these. A lock of the queue's row would not
-- do: those who share one are let in while another waits to have it alone. There are 256,
-- for all tenants: few enough that pushes to many queues do not fill the server's table of locks.
CREATE FUNCTION queen.queue_lock(p_tenant uuid, p_queue text) RETURNS integer
LANGUAGE sql IMMUTABLE AS $$ SELECT hashtext(p_tenant::text || p_queue) & 255 $$;
