-- Everything lives in the schema "queen", which exists before the first migration runs.

-- A queue of one tenant. "options" holds only what configure has set: read them by queen.effective.
-- A deleted queue has no tenant, so that no name finds it. Its row stays until its partitions, which refer to it,
-- have been removed in small steps.
CREATE TABLE queen.queues (
    id         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    tenant     uuid,
    name       text COLLATE "C" NOT NULL,
    options    jsonb NOT NULL DEFAULT '{}',
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    UNIQUE (tenant, name)
);

-- All options of a queue: what is set, and the defaults, which stand here and nowhere else.
CREATE FUNCTION queen.effective(p_options jsonb) RETURNS jsonb
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT '{
        "namespace": "",
        "task": "",
        "priority": 0,
        "leaseTime": 300,
        "retryLimit": 3,
        "retryDelay": 0,
        "maxSize": 0,
        "ttl": 3600,
        "deadLetterQueue": true,
        "dlqAfterMaxRetries": true,
        "delayedProcessing": 0,
        "windowBuffer": 0,
        "retentionSeconds": 0,
        "completedRetentionSeconds": 0,
        "retentionEnabled": false,
        "encryptionEnabled": false,
        "maxWaitTimeSeconds": 0,
        "minPopWaitTime": 0,
        "dedupWindowSeconds": 3600,
        "retentionSinkHold": "",
        "retentionSinkHoldMaxSeconds": 604800
    }'::jsonb || coalesce(p_options, '{}')
$$;

-- The allocator row of a partition: who holds its lock assigns offsets and timestamps.
--   life           names this life of the partition: deleted and made again, it differs
--   next_offset    the next offset to be assigned, the high watermark
--   log_start      the oldest offset still kept
--   last_ts        the ts of the newest segment
--   last_write_at  last_ts floored to the second, so that the index over it moves at most once a
--                  second and every other write is a heap-only update
--   armed          someone has read the partition to its end and wants to hear of the next push. Not indexed:
--                  clearing it costs a push nothing
CREATE TABLE queen.partitions (
    id            bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    queue_id      bigint NOT NULL REFERENCES queen.queues (id),
    name          text COLLATE "C" NOT NULL,
    life          uuid NOT NULL DEFAULT gen_random_uuid(),
    next_offset   bigint NOT NULL DEFAULT 0,
    log_start     bigint NOT NULL DEFAULT 0,
    last_ts       timestamptz NOT NULL DEFAULT '-infinity',
    last_write_at timestamptz NOT NULL DEFAULT date_trunc('second', clock_timestamp()),
    armed         boolean NOT NULL DEFAULT false,
    UNIQUE (queue_id, name)
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.05);

CREATE INDEX partitions_by_last_write ON queen.partitions (queue_id, last_write_at, name);

-- Clients name a partition by its life.
CREATE UNIQUE INDEX partitions_by_life ON queen.partitions (life);

-- Records of one partition, written by one push: offsets base_offset to base_offset + records - 1.
--   raw_bytes      length of the block before compression
--   payload_bytes  payload lengths added up, an empty payload counting 1
CREATE TABLE queen.segments (
    partition_id  bigint NOT NULL,
    base_offset   bigint NOT NULL,
    ts            timestamptz NOT NULL,
    payload_bytes bigint NOT NULL,
    raw_bytes     integer NOT NULL,
    records       integer NOT NULL,
    block         bytea NOT NULL,
    PRIMARY KEY (partition_id, base_offset)
);
-- Blocks are compressed already: PostgreSQL would only try again.
ALTER TABLE queen.segments ALTER COLUMN block SET STORAGE EXTERNAL;

-- The floor F of safeTime: no transaction that begins after F was committed writes a ts below it.
CREATE TABLE queen.floor (
    one boolean PRIMARY KEY DEFAULT true CHECK (one),
    ts  timestamptz NOT NULL
) WITH (fillfactor = 10);
INSERT INTO queen.floor (ts) VALUES (clock_timestamp() - interval '5 seconds');

-- What every broker of this database shares: the key that cursors are checked with.
CREATE TABLE queen.cluster (
    one        boolean PRIMARY KEY DEFAULT true CHECK (one),
    cursor_key uuid NOT NULL
);
INSERT INTO queen.cluster (cursor_key) VALUES (gen_random_uuid());

-- Queues that are deleted, while something of them is left.
CREATE TABLE queen.deleted_queues (
    queue_id bigint PRIMARY KEY REFERENCES queen.queues (id),
    tenant   uuid NOT NULL,
    name     text COLLATE "C" NOT NULL
);
CREATE INDEX deleted_queues_by_name ON queen.deleted_queues (tenant, name);

-- Partitions whose row is gone. Their segments are reached by nobody, and go in small steps.
CREATE TABLE queen.trash (partition_id bigint PRIMARY KEY);

-- Reads one fetch call: per entry one row with its bounds (base_offset NULL), then its segments in
-- order. The first segment of the call always comes; p_call bounds the stored bytes of the call,
-- p_raw the bytes before compression plus an allowance per record.
--
-- STABLE: bounds and segments of all entries come from one snapshot.
CREATE FUNCTION queen.fetch(
    p_tenant uuid, p_queues text[], p_partitions text[], p_offsets bigint[], p_max bigint[],
    p_call bigint, p_raw bigint, p_records bigint, p_blocks boolean
) RETURNS TABLE (
    entry integer, known boolean, watermark bigint, log_start bigint, base_offset bigint,
    ts timestamptz, records integer, raw_bytes integer, payload_bytes bigint, block bytea, life uuid
)
LANGUAGE plpgsql STABLE AS $$
#variable_conflict use_column
DECLARE
    v_spent bigint;
    v_taken bigint;
    v_call  bigint := p_call;
    v_raw   bigint := p_raw;
    v_any   boolean := false;
    e       record;
    s       record;
BEGIN
    -- One row per entry: its bounds, and the segment in which its offset lies. Many partitions, each
    -- of which has little, cost this statement and no other.
    FOR e IN
        SELECT g.ord, g.at, g.most, q.id IS NOT NULL AS known, p.id AS partition_id, p.life,
               coalesce(p.next_offset, 0) AS watermark, coalesce(p.log_start, 0) AS log_start,
               f.base_offset, f.ts, f.records, f.raw_bytes, f.payload_bytes, f.block,
               octet_length(f.block) AS stored
        FROM unnest(p_queues, p_partitions, p_offsets, p_max) WITH ORDINALITY
             AS g (queue, part, at, most, ord)
        LEFT JOIN LATERAL (
            SELECT q.id FROM queen.queues q WHERE q.tenant = p_tenant AND q.name = g.queue LIMIT 1
        ) q ON true
        LEFT JOIN LATERAL (
            SELECT p.id, p.life, p.next_offset, p.log_start
            FROM queen.partitions p WHERE p.queue_id = q.id AND p.name = g.part LIMIT 1
        ) p ON true
        LEFT JOIN LATERAL (
            SELECT t.base_offset, t.ts, t.records, t.raw_bytes, t.payload_bytes, t.block
            FROM queen.segments t
            WHERE t.partition_id = p.id AND t.base_offset <= g.at
              AND g.at >= p.log_start AND g.at < p.next_offset
            ORDER BY t.base_offset DESC LIMIT 1
        ) f ON true
        ORDER BY g.ord
    LOOP
        entry := e.ord - 1;
        known := e.known;
        watermark := e.watermark;
        log_start := e.log_start;
        base_offset := NULL;
        ts := NULL;
        records := NULL;
        raw_bytes := NULL;
        payload_bytes := NULL;
        block := NULL;
        life := e.life;
        RETURN NEXT;
        CONTINUE WHEN e.partition_id IS NULL OR e.at < e.log_start OR e.at >= e.watermark;
        CONTINUE WHEN v_any AND (v_call <= 0 OR v_raw <= 0);

        v_spent := 0;
        v_taken := 0;
        IF e.base_offset + e.records > e.at THEN
            IF v_any AND e.stored > v_call THEN
                v_call := 0;
                CONTINUE;
            END IF;
            v_any := true;
            v_call := v_call - e.stored;
            v_raw := v_raw - e.raw_bytes - 100 * e.records;
            v_spent := e.stored;
            base_offset := e.base_offset;
            ts := e.ts;
            records := e.records;
            raw_bytes := e.raw_bytes;
            payload_bytes := e.payload_bytes;
            IF p_blocks THEN
                block := e.block;
            END IF;
            RETURN NEXT;
            v_taken := e.base_offset + e.records - e.at;
            CONTINUE WHEN e.base_offset + e.records >= e.watermark OR v_taken >= p_records
                OR v_spent >= e.most;
        END IF;
        FOR s IN
            SELECT t.base_offset, t.ts, t.records, t.raw_bytes, t.payload_bytes, t.block,
                   octet_length(t.block) AS stored
            FROM queen.segments t
            WHERE t.partition_id = e.partition_id AND t.base_offset > coalesce(e.base_offset, -1)
            ORDER BY t.base_offset
        LOOP
            CONTINUE WHEN s.base_offset + s.records <= e.at;
            EXIT WHEN v_spent > 0 AND v_spent + s.stored > e.most;
            IF v_any AND (s.stored > v_call OR v_raw <= 0) THEN
                v_call := 0;
                EXIT;
            END IF;
            v_any := true;
            v_call := v_call - s.stored;
            v_raw := v_raw - s.raw_bytes - 100 * s.records;
            v_spent := v_spent + s.stored;
            base_offset := s.base_offset;
            ts := s.ts;
            records := s.records;
            raw_bytes := s.raw_bytes;
            payload_bytes := s.payload_bytes;
            IF p_blocks THEN
                block := s.block;
            END IF;
            RETURN NEXT;
            v_taken := v_taken + s.base_offset + s.records - greatest(s.base_offset, e.at);
            EXIT WHEN v_taken >= p_records;
        END LOOP;
    END LOOP;
END
$$;
