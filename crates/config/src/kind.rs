//! The table of resource kinds: keys, names, methods, references and secrets of every kind, described once.
//!
//! Rules files, stores, the Admin API with its schemas and OpenAPI document, and the reference page take what they need
//! from here. A new kind is an entry of [`kinds!`], its type, and the type's `Item` implementation (`load/item.rs`).

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

/// Description of a kind.
#[derive(Debug)]
pub struct KindEntry {
    /// Path of a resource, as the key in a store and below `/apisix/admin`. The first segment of the path is the
    /// section of a rules file. Parameters in braces name the id and, before it, the parent.
    pub path: &'static str,
    /// Name of one resource, as in names of schemas: `plugin_config`.
    pub name: &'static str,
    /// Name of one resource in messages: `plugin config`.
    pub noun: &'static str,
    /// Position where kinds are listed for people and tools.
    pub rank: u8,
    /// Methods of the Admin API beside GET, PUT and DELETE.
    pub methods: &'static [&'static str],
    /// True if resources carry `create_time` and `update_time`.
    pub has_times: bool,
    /// True if the Admin API serves the schema.
    pub has_schema: bool,
    /// Fields with the id of another resource, and its kind, in the order in which missing resources are reported.
    pub references: &'static [(&'static str, ResourceKind)],
    /// Paths of private keys and tokens, which are never shown; `*` stands for every element of a list.
    pub secrets: &'static [&'static str],
}

impl KindEntry {
    const PLAIN: Self = Self {
        path: "",
        name: "",
        noun: "",
        rank: u8::MAX,
        methods: &[],
        has_times: true,
        has_schema: true,
        references: &[],
        secrets: &["upstream.tls.client_key", "upstream.tunnel.authorization"],
    };
}

/// Defines the kinds: `listed` ones have a section of their own in a rules file, `nested` ones stand in the section of
/// their parent, `foreign` ones stand in stores alone.
macro_rules! kinds {
    (
        $d:tt
        listed { $($(#[$doc:meta])* $kind:ident($type:ident) $items:ident {$($field:ident: $value:expr),* $(,)?})* }
        nested { $($(#[$ndoc:meta])* $nkind:ident($ntype:ident) {$($nfield:ident: $nvalue:expr),* $(,)?})* }
        foreign { $($(#[$udoc:meta])* $ukind:ident {$($ufield:ident: $uvalue:expr),* $(,)?})* }
    ) => {
        /// A kind of resource. A listed kind is greater than the kinds that it refers to.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum ResourceKind {
            $($(#[$doc])* $kind,)*
            $($(#[$ndoc])* $nkind,)*
            $($(#[$udoc])* $ukind,)*
        }

        impl ResourceKind {
            /// All kinds of the model.
            pub const ALL: [Self; [$(stringify!($kind),)* $(stringify!($nkind),)*].len()] =
                [$(Self::$kind,)* $(Self::$nkind,)*];

            /// Kinds of what families keep in a store in their own forms.
            pub const FOREIGN: &'static [Self] = &[$(Self::$ukind,)*];

            /// True for a kind whose resources lie below those of another one.
            #[must_use]
            pub fn is_nested(self) -> bool {
                matches!(self, $(Self::$nkind)|*)
            }

            /// True for a kind of the model.
            #[must_use]
            pub fn is_of_model(self) -> bool {
                match self {
                    $(Self::$ukind => false,)*
                    _ => true,
                }
            }
        }

        const TABLE: [KindEntry; [$(stringify!($kind),)* $(stringify!($nkind),)* $(stringify!($ukind),)*].len()] = [
            $(KindEntry { $($field: $value,)* ..KindEntry::PLAIN },)*
            $(KindEntry { $($nfield: $nvalue,)* ..KindEntry::PLAIN },)*
            $(KindEntry { $($ufield: $uvalue,)* ..KindEntry::PLAIN },)*
        ];

        /// Evaluates an expression in which a name stands for the type of a kind, or another one for a foreign kind:
        /// `with_type!(kind, T => Some(json_schema::<T>()), else None)`.
        macro_rules! with_type {
            ($d of:expr, $d name:ident => $d work:expr, else $d other:expr) => {
                match $d of {
                    $($crate::kind::ResourceKind::$kind => {
                        type $d name = $crate::resource::$type;
                        $d work
                    })*
                    $($crate::kind::ResourceKind::$nkind => {
                        type $d name = $crate::resource::$ntype;
                        $d work
                    })*
                    $($crate::kind::ResourceKind::$ukind => $d other,)*
                }
            };
        }

        /// Calls a macro with the documentation, the type and the field name of each listed kind.
        macro_rules! listed {
            ($d then:ident) => { $d then! { $($(#[$doc])* $type $items;)* } };
        }
    };
}

#[rustfmt::skip]
kinds! { $
    listed {
        /// Secret managers, whose values stand in the places of references already.
        Secrets(SecretManager) secrets {
            path: "secrets/{manager}/{id}", name: "secret", noun: "secret", rank: 11,
            methods: &["PATCH"],
            has_schema: false,
            secrets: &["token", "secret_access_key", "session_token", "auth_config.private_key"],
        }
        /// Descriptions of gRPC services.
        Protos(Proto) protos {
            path: "protos/{id}", name: "proto", noun: "proto", rank: 10,
            methods: &["POST"],
        }
        /// Certificates.
        Ssls(Ssl) ssls {
            path: "ssls/{id}", name: "ssl", noun: "ssl", rank: 8,
            methods: &["POST", "PATCH"],
            secrets: &["key", "keys.*"],
        }
        /// Targets of requests.
        Upstreams(Upstream) upstreams {
            path: "upstreams/{id}", name: "upstream", noun: "upstream", rank: 2,
            methods: &["POST", "PATCH"],
            references: &[("tls.client_cert_id", ResourceKind::Ssls)],
            secrets: &["tls.client_key", "tunnel.authorization"],
        }
        /// Upstreams, plugins and hosts that several routes share.
        Services(Service) services {
            path: "services/{id}", name: "service", noun: "service", rank: 1,
            methods: &["POST", "PATCH"],
            references: &[
                ("upstream.tls.client_cert_id", ResourceKind::Ssls),
                ("upstream_id", ResourceKind::Upstreams),
            ],
        }
        /// Plugins that several routes share.
        PluginConfigs(PluginConfig) plugin_configs {
            path: "plugin_configs/{id}", name: "plugin_config", noun: "plugin config", rank: 6,
            methods: &["PATCH"],
        }
        /// Rules for requests: which are taken, and what is done with them.
        Routes(Route) routes {
            path: "routes/{id}", name: "route", noun: "route", rank: 0,
            methods: &["POST", "PATCH"],
            references: &[
                ("upstream.tls.client_cert_id", ResourceKind::Ssls),
                ("upstream_id", ResourceKind::Upstreams),
                ("service_id", ResourceKind::Services),
                ("plugin_config_id", ResourceKind::PluginConfigs),
            ],
        }
        /// Limits and rights of callers.
        Plans(Plan) plans {
            path: "plans/{id}", name: "plan", noun: "plan", rank: 13,
            methods: &["POST", "PATCH"],
            secrets: &[],
        }
        /// People who have applications, and look after their keys.
        Developers(Developer) developers {
            path: "developers/{id}", name: "developer", noun: "developer", rank: 14,
            methods: &["POST", "PATCH"],
            secrets: &[],
        }
        /// Plugins that several consumers share.
        ConsumerGroups(ConsumerGroup) consumer_groups {
            path: "consumer_groups/{id}", name: "consumer_group", noun: "consumer group", rank: 5,
            methods: &["PATCH"],
        }
        /// Callers, with all credentials.
        Consumers(Consumer) consumers {
            path: "consumers/{username}", name: "consumer", noun: "consumer", rank: 3,
            references: &[("group_id", ResourceKind::ConsumerGroups)],
        }
        /// Plugins for every request.
        GlobalRules(GlobalRule) global_rules {
            path: "global_rules/{id}", name: "global_rule", noun: "global rule", rank: 7,
            methods: &["PATCH"],
        }
        /// Rules for TCP connections and UDP datagrams.
        StreamRoutes(StreamRoute) stream_routes {
            path: "stream_routes/{id}", name: "stream_route", noun: "stream route", rank: 12,
            methods: &["POST"],
            references: &[
                ("upstream.tls.client_cert_id", ResourceKind::Ssls),
                ("upstream_id", ResourceKind::Upstreams),
                ("service_id", ResourceKind::Services),
            ],
        }
        /// Settings of a plugin that hold wherever it is used.
        PluginMetadata(PluginMetadata) plugin_metadata {
            path: "plugin_metadata/{plugin}", name: "plugin_metadata", noun: "plugin_metadata", rank: 9,
            has_times: false, has_schema: false,
            // Those of error-log-logger.
            secrets: &["clickhouse.password", "kafka.brokers.*.sasl_config.password"],
        }
    }
    nested {
        /// Ways for a consumer to authenticate, beside those that stand in the consumer itself.
        Credentials(Credential) {
            path: "consumers/{username}/credentials/{id}", name: "credential", noun: "credential", rank: 4,
        }
        /// Weights of fields of GraphQL, for all routes of a service.
        GraphqlCostDecorations(GraphqlCostDecoration) {
            path: "services/{service_id}/graphql_cost_decorations/{id}", name: "graphql_cost_decoration",
            noun: "graphql cost decoration", rank: 15,
            methods: &["POST", "PATCH"],
            secrets: &[],
        }
    }
    foreign {
        /// Entities of a family as it writes them, from which the model is lowered.
        Entities {
            path: "entities/{section}/{id}", name: "entity", noun: "entity", rank: 0,
            has_schema: false, secrets: &[],
        }
    }
}
pub(crate) use {listed, with_type};

static ENTRIES: [KindEntry; TABLE.len()] = TABLE;

/// All kinds of the model by their ranks, which are unique and without a gap, or this does not compile.
static RANKED: [ResourceKind; ResourceKind::ALL.len()] = {
    let mut ranked = [None; ResourceKind::ALL.len()];
    let mut at = 0;
    while at < ranked.len() {
        ranked[TABLE[at].rank as usize] = Some(ResourceKind::ALL[at]);
        at += 1;
    }
    let mut kinds = ResourceKind::ALL;
    while at > 0 {
        at -= 1;
        kinds[at] = ranked[at].expect("ranks are unique");
    }
    kinds
};

impl ResourceKind {
    /// Entry of the kind in the table.
    #[must_use]
    pub fn entry(self) -> &'static KindEntry {
        &ENTRIES[self as usize]
    }

    /// All kinds of the model in the order in which they are listed for people and tools.
    #[must_use]
    pub fn ranked() -> &'static [Self] {
        &RANKED
    }

    /// Kinds with a section of their own in a rules file, in the order of [`ranked`](Self::ranked).
    pub fn sections() -> impl Iterator<Item = Self> {
        RANKED.into_iter().filter(|kind| kind.section() == *kind)
    }

    /// Section of a rules file, and directory of the keys. Nested kinds lie below their owners.
    #[must_use]
    pub fn directory(self) -> &'static str {
        self.entry().path.split('/').next().unwrap_or_default()
    }

    /// Kind that the section is named after, which is that of the owner for a nested one: consumers for credentials.
    #[must_use]
    pub fn section(self) -> Self {
        Self::named(self.directory()).unwrap_or(self)
    }

    /// Kind of what is nested in resources of this kind: credentials for consumers.
    #[must_use]
    pub fn nested(self) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.is_nested() && kind.section() == self)
    }

    /// Splits the id of a resource of a nested kind into that of its owner and its own: `jack/credentials/c1`.
    #[must_use]
    pub fn split_nested(self, id: &str) -> Option<(&str, &str)> {
        let (owner, rest) = id.split_once('/')?;
        Some((owner, rest.strip_prefix(self.plural())?.strip_prefix('/')?))
    }

    /// Name of the kind: `routes`, `credentials`.
    #[must_use]
    pub fn plural(self) -> &'static str {
        self.entry().path.rsplit('/').find(|segment| !segment.starts_with('{')).unwrap_or_default()
    }

    /// Kind with this [name](Self::plural).
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.plural() == name)
    }

    /// Parameters of the path: that of the id, after that of the parent.
    pub fn parameters(self) -> impl Iterator<Item = &'static str> {
        self.entry().path.split('/').filter_map(|segment| segment.strip_prefix('{')?.strip_suffix('}'))
    }

    /// Field of a resource that repeats the id of its key.
    #[must_use]
    pub fn id_field(self) -> &'static str {
        match self.parameters().last() {
            Some("username") => "username",
            _ => "id",
        }
    }

    /// True if a resource of this kind refers to another.
    #[must_use]
    pub fn is_referred_to(self) -> bool {
        ENTRIES.iter().any(|entry| entry.references.iter().any(|(_, to)| *to == self))
    }
}

/// Key of a resource: `routes/1`, `consumers/jack/credentials/c1`, `secrets/vault/1`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ResourceKey {
    kind: ResourceKind,
    /// Part of the key after the directory.
    id: Arc<str>,
}

/// Error for a text that is no [`ResourceKey`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParseKeyError(String);

impl ResourceKey {
    /// Creates a key; `id` is the part after the directory: `1`, `jack`, `jack/credentials/c1`, `vault/1`.
    #[must_use]
    pub fn new(kind: ResourceKind, id: &str) -> Self {
        Self { kind, id: id.into() }
    }

    /// Creates a key without copying the id.
    #[must_use]
    pub fn shared(kind: ResourceKind, id: Arc<str>) -> Self {
        Self { kind, id }
    }

    /// Kind of the resource.
    #[must_use]
    pub fn kind(&self) -> ResourceKind {
        self.kind
    }

    /// Part of the key after the directory.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Part of the key after the directory, not copied.
    #[must_use]
    pub fn shared_id(&self) -> Arc<str> {
        Arc::clone(&self.id)
    }

    /// Id within the parent: `c1` of `consumers/jack/credentials/c1`. The parent of a secret is a part of its own id.
    #[must_use]
    pub fn own_id(&self) -> &str {
        match self.kind.is_nested() {
            true => self.id.rsplit('/').next().unwrap_or_default(),
            false => &self.id,
        }
    }

    /// Consumer that a credential belongs to.
    #[must_use]
    pub fn consumer(&self) -> Option<&str> {
        self.owner().filter(|_| self.kind == ResourceKind::Credentials)
    }

    /// Id of the resource that one of a nested kind belongs to.
    #[must_use]
    pub fn owner(&self) -> Option<&str> {
        self.id.split_once('/').filter(|_| self.kind.is_nested()).map(|(owner, _)| owner)
    }

    /// Key of the resource that one of a nested kind belongs to.
    #[must_use]
    pub fn owner_key(&self) -> Option<Self> {
        self.owner().map(|owner| Self::new(self.kind.section(), owner))
    }
}

impl fmt::Display for ResourceKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.kind.directory(), self.id)
    }
}

impl FromStr for ResourceKey {
    type Err = ParseKeyError;

    fn from_str(text: &str) -> Result<Self, ParseKeyError> {
        let fits = |kind: &ResourceKind| {
            let (mut path, mut segments) = (kind.entry().path.split('/'), text.split('/'));
            let fits = |wanted: &str, found: &str| match wanted.starts_with('{') {
                true => !found.is_empty(),
                false => wanted == found,
            };
            path.all(|wanted| segments.next().is_some_and(|found| fits(wanted, found))) && segments.next().is_none()
        };
        let kind = ResourceKind::ALL.iter().chain(ResourceKind::FOREIGN).copied().find(fits);
        let id = text.split_once('/').map(|(_, id)| id);
        kind.zip(id).map(|(kind, id)| Self::new(kind, id)).ok_or_else(|| ParseKeyError(text.to_owned()))
    }
}

impl fmt::Display for ParseKeyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "'{}' is no place of a resource: it would be KIND/ID, such as routes/1", self.0)
    }
}

impl std::error::Error for ParseKeyError {}

#[cfg(test)]
mod tests {
    use super::{ResourceKey, ResourceKind};

    #[test]
    fn keys_are_read_and_written() {
        let cases = [
            ("routes/1", Some((ResourceKind::Routes, "1", "1"))),
            ("consumers/jack", Some((ResourceKind::Consumers, "jack", "jack"))),
            ("consumers/jack/credentials/c1", Some((ResourceKind::Credentials, "jack/credentials/c1", "c1"))),
            (
                "services/s/graphql_cost_decorations/p",
                Some((ResourceKind::GraphqlCostDecorations, "s/graphql_cost_decorations/p", "p")),
            ),
            ("secrets/vault/1", Some((ResourceKind::Secrets, "vault/1", "vault/1"))),
            ("entities/services/s1", Some((ResourceKind::Entities, "services/s1", "services/s1"))),
            ("entities/services", None),
            ("plugin_metadata/prometheus", Some((ResourceKind::PluginMetadata, "prometheus", "prometheus"))),
            ("routes", None),
            ("routes/", None),
            ("routes/1/2", None),
            ("secrets/1", None),
            ("secrets//1", None),
            ("foos/1", None),
            ("consumers/jack/credentials", None),
            ("consumers/jack/keys/c1", None),
        ];
        for (text, expected) in cases {
            let key = text.parse::<ResourceKey>().ok();
            assert_eq!(key.as_ref().map(|key| (key.kind(), key.id(), key.own_id())), expected, "{text}");
            if let Some(key) = key {
                assert_eq!(key.to_string(), text);
            }
        }
    }

    #[test]
    fn entries_are_whole_and_in_order() {
        for (index, kind) in ResourceKind::ALL.into_iter().enumerate() {
            let entry = kind.entry();
            assert!(!entry.path.is_empty() && !entry.name.is_empty() && !entry.noun.is_empty(), "{kind:?}");
            assert_eq!(ResourceKind::named(kind.plural()), Some(kind));
            for (field, to) in entry.references {
                assert!((*to as usize) < index, "{kind:?} stands before what {field} refers to");
            }
        }
    }
}
