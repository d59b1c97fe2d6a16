//! The kinds of entities with their fields, as Kong's schemas have them.

use weir_config::{Kind, Node};

use super::whole;

/// A kind of entity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)] // the variants are Kong's names
pub(crate) enum EntityKind {
    Services,
    Routes,
    Upstreams,
    Targets,
    Consumers,
    ConsumerGroups,
    Plugins,
    Certificates,
    Snis,
    CaCertificates,
    Vaults,
    KeyAuth,
    BasicAuth,
    Acls,
    Jwt,
    HmacAuth,
    Oauth2,
    MtlsAuth,
}

/// Description of a kind.
pub(crate) struct Description {
    /// Name of its collection.
    pub(crate) section: &'static str,
    /// Name of one, in messages.
    pub(crate) noun: &'static str,
    /// Field by which others refer to it.
    pub(crate) name: &'static str,
    /// True if no two entities of the kind have the same name.
    pub(crate) is_unique: bool,
    /// True if an entity may be written as the text of its name.
    pub(crate) is_plain: bool,
    /// True if the name is a secret.
    pub(crate) is_secret: bool,
    pub(crate) required: &'static [&'static str],
    pub(crate) fields: &'static [(&'static str, Shape)],
    /// Collections that may be nested in it, with the field by which what is in them refers to it.
    pub(crate) nested: &'static [(&'static str, &'static str)],
}

/// The type of a field.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Shape {
    Text,
    Flag,
    /// A whole number in a range.
    Whole(i64, i64),
    /// One of some texts.
    OneOf(&'static [&'static str]),
    Texts,
    Map,
    /// Anything; it is checked elsewhere.
    Any,
    Reference(EntityKind),
}

use EntityKind as E;
use Shape::{Any, Flag, Map, OneOf, Reference, Text, Texts, Whole};

/// The largest timeout, in milliseconds.
const MOST_MS: i64 = 2_147_483_646;
const ID: (&str, Shape) = ("id", Text);
const TAGS: (&str, Shape) = ("tags", Texts);
const CREATED: (&str, Shape) = ("created_at", Any);
const UPDATED: (&str, Shape) = ("updated_at", Any);
/// Plans of a credential, which Kong does not have.
const PLAN: (&str, Shape) = ("plan", Any);
const CONSUMER: (&str, Shape) = ("consumer", Reference(E::Consumers));

impl Description {
    const PLAIN: Self = Self {
        section: "",
        noun: "",
        name: "name",
        is_unique: true,
        is_plain: false,
        is_secret: false,
        required: &[],
        fields: &[],
        nested: &[],
    };

    /// A field by its name.
    pub(crate) fn field(&self, name: &str) -> Option<(&'static str, Shape)> {
        self.fields.iter().find(|(field, _)| *field == name).copied()
    }
}

impl Shape {
    /// Checks a value, in Kong's words.
    ///
    /// # Errors
    /// Checks a value; the error says what was expected.
    pub(crate) fn check(self, value: &Node) -> Result<(), String> {
        let is_text = |node: &Node| node.as_str().is_some();
        let fits = match self {
            Text => is_text(value),
            Flag => matches!(value.kind, Kind::Bool(_)),
            Whole(..) => whole(value).is_some(),
            OneOf(_) => is_text(value),
            Texts => value.as_seq().is_some_and(|items| items.iter().all(is_text)),
            Map => value.as_map().is_some(),
            Any | Reference(_) => true,
        };
        let expected = match self {
            Text | OneOf(_) => "a string",
            Flag => "a boolean",
            Whole(..) => "an integer",
            Texts => "an array of strings",
            Map => "a map",
            Any | Reference(_) => "",
        };
        if !fits {
            return Err(format!("expected {expected}, found {}", value.describe()));
        }
        match self {
            Whole(least, most) if !whole(value).is_some_and(|n| (least..=most).contains(&n)) => {
                Err(format!("value should be between {least} and {most}"))
            }
            OneOf(known) if !value.as_str().is_some_and(|text| known.contains(&text)) => {
                Err(format!("expected one of: {}", known.join(", ")))
            }
            _ => Ok(()),
        }
    }
}

impl EntityKind {
    /// All kinds; a kind that others refer to does not have to come first.
    pub(crate) const ALL: [Self; 18] = [
        E::Services,
        E::Routes,
        E::Upstreams,
        E::Targets,
        E::Consumers,
        E::ConsumerGroups,
        E::Plugins,
        E::Certificates,
        E::Snis,
        E::CaCertificates,
        E::Vaults,
        E::KeyAuth,
        E::BasicAuth,
        E::Acls,
        E::Jwt,
        E::HmacAuth,
        E::Oauth2,
        E::MtlsAuth,
    ];

    /// The kind of a collection.
    pub(crate) fn of_section(section: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.description().section == section)
    }

    pub(crate) fn description(self) -> &'static Description {
        match self {
            E::Services => &SERVICE,
            E::Routes => &ROUTE,
            E::Upstreams => &UPSTREAM,
            E::Targets => &TARGET,
            E::Consumers => &CONSUMER_KIND,
            E::ConsumerGroups => &CONSUMER_GROUP,
            E::Plugins => &PLUGIN,
            E::Certificates => &CERTIFICATE,
            E::Snis => &SNI,
            E::CaCertificates => &CA_CERTIFICATE,
            E::Vaults => &VAULT,
            E::KeyAuth => &KEY_AUTH,
            E::BasicAuth => &BASIC_AUTH,
            E::Acls => &ACL,
            E::Jwt => &JWT,
            E::HmacAuth => &HMAC_AUTH,
            E::Oauth2 => &OAUTH2,
            E::MtlsAuth => &MTLS_AUTH,
        }
    }
}

static SERVICE: Description = Description {
    section: "services",
    noun: "service",
    fields: &[
        ID,
        TAGS,
        CREATED,
        UPDATED,
        ("name", Text),
        ("url", Text),
        ("protocol", OneOf(&["http", "https", "grpc", "grpcs", "ws", "wss", "tcp", "tls", "udp", "tls_passthrough"])),
        ("host", Text),
        ("port", Whole(0, 65535)),
        ("path", Text),
        ("retries", Whole(0, 32767)),
        ("connect_timeout", Whole(1, MOST_MS)),
        ("write_timeout", Whole(1, MOST_MS)),
        ("read_timeout", Whole(1, MOST_MS)),
        ("tls_verify", Flag),
        ("tls_verify_depth", Whole(0, 64)),
        ("ca_certificates", Texts),
        ("client_certificate", Reference(E::Certificates)),
        ("enabled", Flag),
    ],
    nested: &[("routes", "service"), ("plugins", "service")],
    ..Description::PLAIN
};

static ROUTE: Description = Description {
    section: "routes",
    noun: "route",
    fields: &[
        ID,
        TAGS,
        CREATED,
        UPDATED,
        ("name", Text),
        ("service", Reference(E::Services)),
        ("protocols", Texts),
        ("methods", Texts),
        ("hosts", Texts),
        ("paths", Texts),
        ("headers", Map),
        ("snis", Texts),
        ("sources", Any),
        ("destinations", Any),
        ("expression", Text),
        ("priority", Whole(0, i64::MAX)),
        ("regex_priority", Whole(0, i64::MAX)),
        ("strip_path", Flag),
        ("preserve_host", Flag),
        ("path_handling", OneOf(&["v0", "v1"])),
        ("https_redirect_status_code", Whole(301, 426)),
        ("request_buffering", Flag),
        ("response_buffering", Flag),
        ("run_on", Any),
    ],
    nested: &[("plugins", "route")],
    ..Description::PLAIN
};

static UPSTREAM: Description = Description {
    section: "upstreams",
    noun: "upstream",
    required: &["name"],
    fields: &[
        ID,
        TAGS,
        CREATED,
        UPDATED,
        ("name", Text),
        ("algorithm", OneOf(&["round-robin", "consistent-hashing", "least-connections", "latency"])),
        ("hash_on", OneOf(HASH_ON)),
        ("hash_fallback", OneOf(HASH_ON)),
        ("hash_on_header", Text),
        ("hash_fallback_header", Text),
        ("hash_on_cookie", Text),
        ("hash_on_cookie_path", Text),
        ("hash_on_query_arg", Text),
        ("hash_fallback_query_arg", Text),
        ("hash_on_uri_capture", Text),
        ("hash_fallback_uri_capture", Text),
        ("slots", Whole(10, 65536)),
        ("healthchecks", Map),
        ("host_header", Text),
        ("client_certificate", Reference(E::Certificates)),
        ("use_srv_name", Flag),
    ],
    nested: &[("targets", "upstream")],
    ..Description::PLAIN
};

const HASH_ON: &[&str] = &["none", "consumer", "ip", "header", "cookie", "path", "query_arg", "uri_capture"];

static TARGET: Description = Description {
    section: "targets",
    noun: "target",
    name: "target",
    is_unique: false,
    is_plain: true,
    required: &["target"],
    fields: &[
        ID,
        TAGS,
        CREATED,
        UPDATED,
        ("target", Text),
        ("weight", Whole(0, 65535)),
        ("upstream", Reference(E::Upstreams)),
    ],
    ..Description::PLAIN
};

static CONSUMER_KIND: Description = Description {
    section: "consumers",
    noun: "consumer",
    name: "username",
    fields: &[ID, TAGS, CREATED, UPDATED, ("username", Text), ("custom_id", Text), ("groups", Any), ("type", Any)],
    nested: &[
        ("plugins", "consumer"),
        ("keyauth_credentials", "consumer"),
        ("basicauth_credentials", "consumer"),
        ("acls", "consumer"),
        ("jwt_secrets", "consumer"),
        ("hmacauth_credentials", "consumer"),
        ("oauth2_credentials", "consumer"),
        ("mtls_auth_credentials", "consumer"),
    ],
    ..Description::PLAIN
};

static CONSUMER_GROUP: Description = Description {
    section: "consumer_groups",
    noun: "consumer group",
    required: &["name"],
    fields: &[ID, TAGS, CREATED, UPDATED, ("name", Text), ("consumers", Any)],
    nested: &[("plugins", "consumer_group")],
    ..Description::PLAIN
};

static PLUGIN: Description = Description {
    section: "plugins",
    noun: "plugin",
    name: "instance_name",
    required: &["name"],
    fields: &[
        ID,
        TAGS,
        CREATED,
        UPDATED,
        ("name", Text),
        ("instance_name", Text),
        ("config", Map),
        ("_config", Text),
        ("enabled", Flag),
        ("protocols", Texts),
        ("service", Reference(E::Services)),
        ("route", Reference(E::Routes)),
        CONSUMER,
        ("consumer_group", Reference(E::ConsumerGroups)),
        ("run_on", Any),
        ("ordering", Any),
    ],
    ..Description::PLAIN
};

static CERTIFICATE: Description = Description {
    section: "certificates",
    noun: "certificate",
    name: "id",
    required: &["cert", "key"],
    fields: &[ID, TAGS, CREATED, UPDATED, ("cert", Text), ("key", Text), ("cert_alt", Text), ("key_alt", Text)],
    nested: &[("snis", "certificate")],
    ..Description::PLAIN
};

static SNI: Description = Description {
    section: "snis",
    noun: "sni",
    is_plain: true,
    required: &["name"],
    fields: &[ID, TAGS, CREATED, UPDATED, ("name", Text), ("certificate", Reference(E::Certificates))],
    ..Description::PLAIN
};

static CA_CERTIFICATE: Description = Description {
    section: "ca_certificates",
    noun: "ca certificate",
    name: "id",
    required: &["cert"],
    fields: &[ID, TAGS, CREATED, UPDATED, ("cert", Text), ("cert_digest", Text)],
    ..Description::PLAIN
};

static VAULT: Description = Description {
    section: "vaults",
    noun: "vault",
    name: "prefix",
    required: &["prefix", "name"],
    fields: &[ID, TAGS, CREATED, UPDATED, ("prefix", Text), ("name", Text), ("description", Text), ("config", Map)],
    ..Description::PLAIN
};

static KEY_AUTH: Description = Description {
    section: "keyauth_credentials",
    noun: "key-auth credential",
    name: "key",
    is_secret: true,
    required: &["key"],
    fields: &[ID, TAGS, CREATED, UPDATED, CONSUMER, ("key", Text), ("ttl", Whole(0, 100_000_000)), PLAN],
    ..Description::PLAIN
};

static BASIC_AUTH: Description = Description {
    section: "basicauth_credentials",
    noun: "basic-auth credential",
    name: "username",
    required: &["username", "password"],
    fields: &[ID, TAGS, CREATED, UPDATED, CONSUMER, ("username", Text), ("password", Text), PLAN],
    ..Description::PLAIN
};

static ACL: Description = Description {
    section: "acls",
    noun: "acl",
    name: "group",
    is_unique: false,
    is_plain: true,
    required: &["group"],
    fields: &[ID, TAGS, CREATED, UPDATED, CONSUMER, ("group", Text)],
    ..Description::PLAIN
};

static JWT: Description = Description {
    section: "jwt_secrets",
    noun: "jwt secret",
    name: "key",
    fields: &[
        ID,
        TAGS,
        CREATED,
        UPDATED,
        CONSUMER,
        ("key", Text),
        ("secret", Text),
        ("rsa_public_key", Text),
        PLAN,
        (
            "algorithm",
            OneOf(&[
                "HS256", "HS384", "HS512", "RS256", "RS384", "RS512", "ES256", "ES384", "ES512", "PS256", "PS384",
                "PS512", "EdDSA",
            ]),
        ),
    ],
    ..Description::PLAIN
};

static HMAC_AUTH: Description = Description {
    section: "hmacauth_credentials",
    noun: "hmac-auth credential",
    name: "username",
    required: &["username"],
    fields: &[ID, TAGS, CREATED, UPDATED, CONSUMER, ("username", Text), ("secret", Text), PLAN],
    ..Description::PLAIN
};

static OAUTH2: Description = Description {
    section: "oauth2_credentials",
    noun: "oauth2 credential",
    name: "client_id",
    fields: &[
        ID,
        TAGS,
        CREATED,
        UPDATED,
        CONSUMER,
        ("name", Text),
        ("client_id", Text),
        ("client_secret", Text),
        ("client_type", Text),
        ("hash_secret", Flag),
        ("redirect_uris", Texts),
    ],
    ..Description::PLAIN
};

static MTLS_AUTH: Description = Description {
    section: "mtls_auth_credentials",
    noun: "mtls-auth credential",
    name: "id",
    required: &["subject_name"],
    fields: &[
        ID,
        TAGS,
        CREATED,
        UPDATED,
        CONSUMER,
        ("subject_name", Text),
        ("ca_certificate", Reference(E::CaCertificates)),
        PLAN,
    ],
    ..Description::PLAIN
};
