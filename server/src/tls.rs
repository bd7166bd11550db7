//! TLS to PostgreSQL.

use std::io;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{
    ClientConfig, DigitallySignedStruct, Error as TlsError, RootCertStore, SignatureScheme,
};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_postgres::config::SslMode;
use tokio_postgres::tls::{ChannelBinding, MakeTlsConnect, TlsConnect, TlsStream};

/// How the connection to PostgreSQL is protected, as `PG_SSLMODE` says.
#[derive(Clone, Default)]
pub enum Tls {
    /// Not at all.
    #[default]
    Off,
    /// Encrypted; with the checks that the configuration holds.
    On(Arc<ClientConfig>),
}

impl Tls {
    /// Encrypted, whoever the server is.
    ///
    /// # Errors
    ///
    /// Of the library.
    pub fn unverified() -> Result<Self, TlsError> {
        let provider = Arc::new(ring::default_provider());
        let config = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(Anyone(provider)))
            .with_no_client_auth();
        Ok(Self::On(Arc::new(config)))
    }

    /// Encrypted, with a server that has a certificate for its name from one of the authorities in a
    /// file.
    ///
    /// # Errors
    ///
    /// What is wrong with the file, in words.
    pub fn verified(authorities: &Path) -> Result<Self, String> {
        let mut roots = RootCertStore::empty();
        let certificates = CertificateDer::pem_file_iter(authorities)
            .map_err(|error| format!("cannot be read: {error}"))?;
        for certificate in certificates {
            let certificate =
                certificate.map_err(|error| format!("is no list of certificates: {error}"))?;
            roots
                .add(certificate)
                .map_err(|error| format!("holds a certificate that does not read: {error}"))?;
        }
        if roots.is_empty() {
            return Err("holds no certificate".into());
        }
        let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(|error| error.to_string())?
            .with_root_certificates(roots)
            .with_no_client_auth();
        Ok(Self::On(Arc::new(config)))
    }

    /// What the client of PostgreSQL is told.
    pub fn mode(&self) -> SslMode {
        match self {
            Self::Off => SslMode::Disable,
            Self::On(_) => SslMode::Require,
        }
    }
}

impl<S> MakeTlsConnect<S> for Tls
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    type Stream = Stream<S>;
    type TlsConnect = Connect;
    type Error = io::Error;

    fn make_tls_connect(&mut self, host: &str) -> io::Result<Connect> {
        // Asked for without TLS, too, and not used then.
        let name = ServerName::try_from(host.to_owned());
        Ok(Connect {
            tls: self.clone(),
            name: name.ok(),
        })
    }
}

/// A handshake to be made.
pub struct Connect {
    tls: Tls,
    name: Option<ServerName<'static>>,
}

impl<S> TlsConnect<S> for Connect
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    type Stream = Stream<S>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Stream<S>>> + Send>>;

    fn connect(self, stream: S) -> Self::Future {
        Box::pin(async move {
            let (Tls::On(config), Some(name)) = (self.tls, self.name) else {
                let reason = "PG_HOST is no name that a certificate can be for";
                return Err(io::Error::new(io::ErrorKind::InvalidInput, reason));
            };
            let connector = tokio_rustls::TlsConnector::from(config);
            Ok(Stream(connector.connect(name, stream).await?))
        })
    }
}

/// An encrypted connection.
pub struct Stream<S>(tokio_rustls::client::TlsStream<S>);

impl<S: AsyncRead + AsyncWrite + Unpin> TlsStream for Stream<S> {
    fn channel_binding(&self) -> ChannelBinding {
        ChannelBinding::none()
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for Stream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(context, buffer)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Stream<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(context)
    }
}

/// Takes every certificate, as `sslmode=require` does; who has it must have its key.
#[derive(Debug)]
struct Anyone(Arc<CryptoProvider>);

impl ServerCertVerifier for Anyone {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, TlsError> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, TlsError> {
        let known = &self.0.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signed, known)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, TlsError> {
        let known = &self.0.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signed, known)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
