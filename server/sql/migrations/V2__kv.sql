-- Key/value rows. "value" is the JSON text as it was put; a row past expires_at reads as absent.
CREATE TABLE queen.kv (
    tenant     uuid NOT NULL,
    ns         text COLLATE "C" NOT NULL,
    key        text COLLATE "C" NOT NULL,
    value      text NOT NULL,
    version    bigint NOT NULL,
    expires_at timestamptz,
    updated_at timestamptz NOT NULL,
    PRIMARY KEY (tenant, ns, key)
) WITH (fillfactor = 70);

CREATE INDEX kv_by_expiry ON queen.kv (expires_at) WHERE expires_at IS NOT NULL;

-- Versions are unique over all keys and never given twice; taken under a key's lock they rise per key.
CREATE SEQUENCE queen.kv_version;
