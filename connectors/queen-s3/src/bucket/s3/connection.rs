//! How the store is reached.

use aws_sdk_s3::config::SharedHttpClient;
use aws_smithy_http_client::proxy::ProxyConfig;
use aws_smithy_http_client::tls::Provider;
use aws_smithy_http_client::tls::rustls_provider::CryptoMode;
use aws_smithy_http_client::{Builder, ConnectorBuilder};

/// The SDK's own HTTP client but for proxies: that one obeys HTTP_PROXY, HTTPS_PROXY and ALL_PROXY,
/// and the log would go in plain text to wherever the environment happens to point. The operator's
/// variables are the whole configuration. Certificates are verified against the system's.
pub(super) fn direct() -> SharedHttpClient {
    Builder::new().build_with_connector_fn(|settings, components| {
        let mut connector = ConnectorBuilder::default()
            .tls_provider(Provider::Rustls(CryptoMode::AwsLc))
            .proxy_config(ProxyConfig::disabled());
        connector.set_connector_settings(settings.cloned());
        if let Some(components) = components {
            connector.set_sleep_impl(components.sleep_impl());
        }
        connector.build()
    })
}
