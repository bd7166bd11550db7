//! What a stack wants of its S3 server, whichever it is.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use queen_dev::{Lake, Moto, Store, StoreKind};

const KEY: &str = "queen/l/queue=a%2Fb/w.jsonl";

fn content(lake: &Lake) -> Result<Vec<Vec<u8>>> {
    let objects = lake.objects("a/b")?.into_iter();
    Ok(objects.map(|object| object.bytes).collect())
}

/// Whether anybody answers a request.
async fn serves(endpoint: &str) -> Result<bool> {
    let client = reqwest::Client::builder().no_proxy().build()?;
    let url = format!("{endpoint}/lake?list-type=2");
    Ok(client.get(url).send().await.is_ok())
}

async fn at_each(test: impl AsyncFn(Store) -> Result<()>) -> Result<()> {
    for kind in StoreKind::ALL {
        let folder = tempfile::tempdir()?;
        let root = folder.path().join("s3");
        let store = Store::start(kind, &root, folder.path(), "lake").await?;
        test(store).await.with_context(|| format!("at {kind}"))?;
    }
    Ok(())
}

#[tokio::test]
async fn a_lake_is_read_as_it_is_now() -> Result<()> {
    at_each(async |store| {
        let lake = store.lake("queen", "l");
        ensure!(content(&lake)?.is_empty());
        for bytes in [b"1", b"2"] {
            store.put(KEY, bytes.into()).await?;
            ensure!(content(&lake)? == [bytes]);
        }
        ensure!(store.lake("queen", "other").objects("a/b")?.is_empty());
        Ok(())
    })
    .await
}

#[tokio::test]
async fn it_answers_nobody_while_stopped_and_comes_back_at_its_address_with_what_it_held()
-> Result<()> {
    at_each(async |mut store| {
        let endpoint = store.endpoint();
        store.put(KEY, b"1".into()).await?;
        ensure!(serves(&endpoint).await?);
        store.stop().await;
        ensure!(!serves(&endpoint).await?, "it answers while stopped");
        let lake = store.lake("queen", "l");
        ensure!(content(&lake)? == [b"1"], "a look needs no open door");
        store.start_again().await?;
        ensure!(serves(&endpoint).await? && store.endpoint() == endpoint);
        ensure!(content(&lake)? == [b"1"]);
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_delay_is_what_a_request_waits_at_least() -> Result<()> {
    const DELAY: Duration = Duration::from_millis(200);
    at_each(async |store| {
        store.delay(DELAY);
        let begin = Instant::now();
        ensure!(serves(&store.endpoint()).await?);
        ensure!(begin.elapsed() >= DELAY, "{:?}", begin.elapsed());
        Ok(())
    })
    .await
}

#[tokio::test]
async fn what_is_deleted_at_moto_is_gone_from_its_lake() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let moto = Moto::start(&folder.path().join("s3"), folder.path(), "lake").await?;
    moto.put(KEY, b"1".into()).await?;
    let lake = moto.lake("queen", "l");
    ensure!(content(&lake)? == [b"1"]);
    let key = KEY.replace('%', "%25");
    let url = format!("http://{}/lake/{key}", moto.address());
    let client = reqwest::Client::builder().no_proxy().build()?;
    let signed = "AWS4-HMAC-SHA256 Credential=any/20260101/us-east-1/s3/aws4_request, \
                  SignedHeaders=host, Signature=0";
    let delete = client.delete(url).header("Authorization", signed);
    delete.send().await?.error_for_status()?;
    ensure!(content(&lake)?.is_empty());
    Ok(())
}
