//! Checks of a token: signature, times, audience, issuer, and the level of its role.

use std::fmt;

use axum::http::{HeaderMap, header};
use jsonwebtoken::errors::ErrorKind;
use jsonwebtoken::{Algorithm, DecodingKey, Validation, decode};
use serde_json::{Map, Value};

use super::level::Level;
use crate::config::Reader;
use crate::limits::TOKEN_SECRET_SHORT_BYTES;

/// Who signs tokens, and what they must say.
#[derive(Clone)]
pub struct Authority {
    key: DecodingKey,
    validation: Validation,
    role_claim: String,
    short_secret: bool,
}

impl fmt::Debug for Authority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Authority")
            .field("algorithms", &self.validation.algorithms)
            .finish_non_exhaustive()
    }
}

/// Why a request may not pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// There is no token.
    #[error("a bearer token is needed")]
    Missing,
    /// The token proves nothing: `401`.
    #[error("the bearer token {0}")]
    Invalid(&'static str),
    /// The token is good and allows too little: `403`.
    #[error("this needs the level {0}, and the token's role does not reach it")]
    TooLow(Level),
}

impl Authority {
    /// Reads the variables, all of them: one that does not parse is a mistake also while tokens are not asked
    /// for. `None` then, and when something is wrong.
    pub(crate) fn read(reader: &mut Reader<'_>) -> Option<Self> {
        let enabled = reader.flag("JWT_ENABLED");
        let name = reader.text("JWT_ALGORITHM");
        let algorithm = match name.trim() {
            "HS256" => Some(Algorithm::HS256),
            "RS256" => Some(Algorithm::RS256),
            "ES256" => Some(Algorithm::ES256),
            _ => {
                reader.refuse("JWT_ALGORITHM", &name);
                None
            }
        };
        let leeway = reader.number("JWT_CLOCK_SKEW_SECONDS", 0, 3_600);
        let audience = reader.value("JWT_AUDIENCE");
        let issuer = reader.value("JWT_ISSUER");
        let role_claim = reader.text("JWT_ROLE_CLAIM").trim().to_owned();
        let secret = reader.value("JWT_SECRET");
        let public_key = public_key(reader, algorithm);

        let algorithm = algorithm.filter(|_| enabled)?;
        let secret_counts = algorithm == Algorithm::HS256;
        let short_secret = secret_counts
            && secret
                .as_ref()
                .is_some_and(|text| text.len() < TOKEN_SECRET_SHORT_BYTES);
        let (key_name, key) = if secret_counts {
            let key = secret.map(|text| DecodingKey::from_secret(text.as_bytes()));
            ("JWT_SECRET", key.and_then(Result::ok))
        } else {
            ("JWT_PUBLIC_KEY", public_key)
        };
        // Whoever asks for tokens and can check none must not serve: there is a problem or a key.
        if key.is_none() && !reader.is_refused(&[key_name]) {
            let what = format!(
                "unset, and JWT_ENABLED=true with JWT_ALGORITHM={} needs it",
                name.trim()
            );
            reader.problem(key_name, what);
        }
        let mut validation = Validation::new(algorithm);
        // A token that never ends is its issuer's choice; one that has ended is none.
        validation.required_spec_claims.clear();
        validation.validate_nbf = true;
        validation.leeway = leeway;
        match audience {
            Some(audience) => {
                validation.set_audience(&[audience.trim()]);
                validation.required_spec_claims.insert("aud".into());
            }
            None => validation.validate_aud = false,
        }
        if let Some(issuer) = issuer {
            validation.set_issuer(&[issuer.trim()]);
            validation.required_spec_claims.insert("iss".into());
        }
        Some(Self {
            key: key?,
            validation,
            role_claim,
            short_secret,
        })
    }

    /// Whether the secret is shorter than what it signs with.
    pub fn secret_is_short(&self) -> bool {
        self.short_secret
    }

    /// Lets a request pass that carries a token of at least `needed`.
    ///
    /// # Errors
    ///
    /// [`Refusal`] tells `401` from `403`.
    pub fn check(&self, headers: &HeaderMap, needed: Level) -> Result<(), Refusal> {
        let token = bearer(headers)?;
        let claims = decode::<Map<String, Value>>(token, &self.key, &self.validation)
            .map_err(|error| Refusal::Invalid(reason(error.kind())))?
            .claims;
        let level = match claims.get(&self.role_claim) {
            Some(Value::String(role)) => Level::of_role(role),
            Some(Value::Array(roles)) => roles
                .iter()
                .filter_map(Value::as_str)
                .filter_map(Level::of_role)
                .max(),
            _ => None,
        };
        if level.is_some_and(|level| level >= needed) {
            return Ok(());
        }
        Err(Refusal::TooLow(needed))
    }
}

/// `JWT_PUBLIC_KEY` as a key of `algorithm`; of either that has one, where tokens are not checked with it.
fn public_key(reader: &mut Reader<'_>, algorithm: Option<Algorithm>) -> Option<DecodingKey> {
    let text = reader.value("JWT_PUBLIC_KEY")?;
    let rsa = || DecodingKey::from_rsa_pem(text.as_bytes());
    let elliptic = || DecodingKey::from_ec_pem(text.as_bytes());
    let (key, of) = match algorithm {
        Some(Algorithm::RS256) => (rsa(), "RS256"),
        Some(Algorithm::ES256) => (elliptic(), "ES256"),
        _ => (rsa().or_else(|_| elliptic()), "RS256 or ES256"),
    };
    if key.is_err() {
        let what = format!(
            "not a key for {of}; a public key is PEM text that begins with -----BEGIN PUBLIC KEY-----"
        );
        reader.problem("JWT_PUBLIC_KEY", what);
    }
    key.ok()
}

/// The token of a request. Two of them would let two readers see two callers.
fn bearer(headers: &HeaderMap) -> Result<&str, Refusal> {
    let mut values = headers.get_all(header::AUTHORIZATION).iter();
    let value = values.next().ok_or(Refusal::Missing)?;
    if values.next().is_some() {
        return Err(Refusal::Invalid("comes in two headers"));
    }
    let text = value
        .to_str()
        .map_err(|_| Refusal::Invalid("is not text"))?;
    match text.split_once(' ') {
        Some((scheme, token)) if scheme.eq_ignore_ascii_case("bearer") => Ok(token.trim()),
        _ => Err(Refusal::Missing),
    }
}

/// What is wrong with the token, without a word of it.
fn reason(kind: &ErrorKind) -> &'static str {
    match kind {
        ErrorKind::ExpiredSignature => "has expired",
        ErrorKind::ImmatureSignature => "is not valid yet",
        ErrorKind::InvalidAudience => "is for another audience",
        ErrorKind::InvalidIssuer => "is from another issuer",
        ErrorKind::InvalidAlgorithm | ErrorKind::UnsupportedAlgorithm => {
            "is signed with another algorithm"
        }
        ErrorKind::MissingRequiredClaim(_) => "lacks an audience or issuer",
        ErrorKind::InvalidSignature => "carries a wrong signature",
        _ => "is malformed",
    }
}
