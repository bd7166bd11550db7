//! The S3 server over a folder.

use anyhow::Result;
use queen_dev::S3Server;

/// The status of an unsigned read of the bucket, or `None` when nobody answers.
async fn unsigned(server: &S3Server) -> Option<u16> {
    let client = reqwest::Client::builder().no_proxy().build().ok()?;
    let url = format!("{}/lake?list-type=2", server.endpoint());
    Some(client.get(url).send().await.ok()?.status().as_u16())
}

#[tokio::test]
async fn refuses_a_request_without_a_signature() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let server = S3Server::start(folder.path(), "lake").await?;
    assert_eq!(unsigned(&server).await, Some(403));
    Ok(())
}
