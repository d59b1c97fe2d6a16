//! Keys of the Admin API, and their roles.
//!
//! Keys are held as SHA-256 digests. A slow password hash would gain nothing: a key is not chosen by a person but has
//! 32 random bytes, which no dictionary has and nobody tries out; and it is checked with every request.

use aws_lc_rs::constant_time::verify_slices_are_equal;
use aws_lc_rs::digest::{SHA256, digest};
use hyper::Method;
use weir_store::Kind;

use crate::Refused;

/// Rights of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Everything.
    Admin,
    /// Reading, and changing callers: consumers, credentials, consumer groups and plans.
    Operator,
    /// Reading.
    Viewer,
}

/// The keys that open the API.
#[derive(Clone, Debug, Default)]
pub struct Keys {
    known: Vec<Known>,
    /// True if requests without a key are let in, as administrators.
    open: bool,
}

#[derive(Clone, Debug)]
struct Known {
    name: String,
    role: Role,
    digest: KeyDigest,
}

/// The SHA-256 of a key.
pub type KeyDigest = [u8; 32];

/// An identified sender of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    /// The name of the key and the subject of the certificate, whichever there are, for the history.
    pub(crate) name: String,
    pub(crate) role: Role,
}

impl Role {
    /// Its name, as in APISIX.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Admin => "admin",
            Self::Operator => "operator",
            Self::Viewer => "viewer",
        }
    }

    /// True if resources of this kind may be changed.
    pub(crate) const fn may_change(self, kind: Kind) -> bool {
        match self {
            Self::Admin => true,
            Self::Operator => {
                matches!(kind, Kind::Consumers | Kind::Credentials | Kind::ConsumerGroups | Kind::Plans)
            }
            Self::Viewer => false,
        }
    }

    fn allows(self, method: &Method) -> bool {
        self != Self::Viewer || *method == Method::GET || *method == Method::HEAD
    }
}

impl Identity {
    /// Refuses a method that the role does not include.
    pub(crate) fn check_method(&self, method: &Method) -> Result<(), String> {
        match self.role.allows(method) {
            true => Ok(()),
            false => Err(format!("invalid method for role {}", self.role.name())),
        }
    }

    /// The refusal of a change of this kind of resource.
    pub(crate) fn refused(&self, kind: Kind) -> Refused {
        Refused::NotAllowed(format!("the role {} may not change {}", self.role.name(), kind.plural()))
    }
}

/// The digest of a key, which is all that is kept of it.
#[must_use]
pub fn key_digest(key: &str) -> KeyDigest {
    let mut found = KeyDigest::default();
    found.copy_from_slice(digest(&SHA256, key.as_bytes()).as_ref());
    found
}

/// A new key: 32 random bytes as hexadecimal digits.
///
/// # Errors
/// The system gives no random bytes.
pub fn new_key() -> Result<String, aws_lc_rs::error::Unspecified> {
    let mut bytes = [0; 32];
    aws_lc_rs::rand::fill(&mut bytes)?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

impl Keys {
    /// No key is asked for: whoever reaches the API may do everything.
    #[must_use]
    pub fn none_required() -> Self {
        Self { known: Vec::new(), open: true }
    }

    /// True when no key is asked for.
    pub(crate) fn is_open(&self) -> bool {
        self.open
    }

    /// Adds a key. `name` stands in the history as the author of changes.
    pub fn add(&mut self, name: &str, role: Role, digest: KeyDigest) {
        self.known.push(Known { name: name.to_owned(), role, digest });
    }

    /// The sender that this key identifies; else the fault, in APISIX's words.
    /// `certificate` is the subject of the one that was shown, which opens nothing by itself.
    pub(crate) fn check(
        &self,
        key: Option<&str>,
        certificate: Option<&str>,
        method: &Method,
    ) -> Result<Identity, String> {
        if self.open {
            let name = certificate.unwrap_or(Role::Admin.name()).to_owned();
            return Ok(Identity { name, role: Role::Admin });
        }
        let key = key.filter(|key| !key.is_empty()).ok_or("missing apikey")?;
        let digest = key_digest(key);
        // All are compared whatever is found, and each in constant time.
        let mut found = None;
        for known in &self.known {
            if verify_slices_are_equal(&known.digest, &digest).is_ok() {
                found = Some(known);
            }
        }
        let known = found.ok_or("wrong apikey")?;
        let name = match certificate {
            Some(subject) => format!("{} ({subject})", known.name),
            None => known.name.clone(),
        };
        let identity = Identity { name, role: known.role };
        identity.check_method(method)?;
        Ok(identity)
    }
}

#[cfg(test)]
mod tests {
    use super::{Keys, Method, Role, key_digest, new_key};

    #[test]
    fn keys_open_what_their_role_allows() {
        let mut keys = Keys::default();
        keys.add("admin", Role::Admin, key_digest("a1"));
        keys.add("operator", Role::Operator, key_digest("o1"));
        keys.add("viewer", Role::Viewer, key_digest("v1"));
        let cases = [
            (Some("a1"), Method::PUT, Ok("admin")),
            (Some("a1"), Method::GET, Ok("admin")),
            (Some("o1"), Method::PUT, Ok("operator")),
            (Some("v1"), Method::GET, Ok("viewer")),
            (Some("v1"), Method::HEAD, Ok("viewer")),
            (Some("v1"), Method::PUT, Err("invalid method for role viewer")),
            (Some("v1"), Method::DELETE, Err("invalid method for role viewer")),
            (Some("x"), Method::GET, Err("wrong apikey")),
            (Some(""), Method::GET, Err("missing apikey")),
            (None, Method::GET, Err("missing apikey")),
        ];
        for (key, method, expected) in cases {
            let found = keys.check(key, None, &method).map(|identity| identity.name);
            assert_eq!(found.as_deref().map_err(String::as_str), expected, "{key:?} {method}");
        }
        assert!(Keys::default().check(Some("a1"), Some("CN=a"), &Method::GET).is_err(), "no key opens nothing");
        let made = [new_key().unwrap(), new_key().unwrap()];
        assert!(made[0].len() == 64 && made[0] != made[1], "{made:?}");
        let name = |keys: &Keys, key, certificate| keys.check(key, certificate, &Method::PUT).map(|by| by.name);
        assert_eq!(name(&keys, Some("a1"), Some("CN=op")).as_deref(), Ok("admin (CN=op)"));
        assert!(name(&keys, None, Some("CN=op")).is_err(), "a certificate is no key");
        assert_eq!(name(&Keys::none_required(), None, None).as_deref(), Ok("admin"));
        assert_eq!(name(&Keys::none_required(), Some("x"), Some("CN=op")).as_deref(), Ok("CN=op"));
    }
}
