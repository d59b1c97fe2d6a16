//! Keys of resources, as in the paths of the Admin API and in etcd.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

/// A kind of resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    /// `routes/ID`
    Routes,
    /// `services/ID`
    Services,
    /// `upstreams/ID`
    Upstreams,
    /// `consumers/USERNAME`
    Consumers,
    /// `consumers/USERNAME/credentials/ID`
    Credentials,
    /// `consumer_groups/ID`
    ConsumerGroups,
    /// `plugin_configs/ID`
    PluginConfigs,
    /// `global_rules/ID`
    GlobalRules,
    /// `ssls/ID`
    Ssls,
    /// `plugin_metadata/PLUGIN`
    PluginMetadata,
    /// `stream_routes/ID`
    StreamRoutes,
    /// `protos/ID`
    Protos,
    /// `secrets/MANAGER/ID`
    Secrets,
}

impl Kind {
    /// All kinds; a kind comes after the kinds that it refers to.
    pub const ALL: [Self; 13] = [
        Self::Secrets,
        Self::Protos,
        Self::Ssls,
        Self::Upstreams,
        Self::Services,
        Self::PluginConfigs,
        Self::Routes,
        Self::StreamRoutes,
        Self::ConsumerGroups,
        Self::Consumers,
        Self::Credentials,
        Self::GlobalRules,
        Self::PluginMetadata,
    ];

    /// Directory of the kind's keys; credentials lie below their consumer.
    #[must_use]
    pub const fn directory(self) -> &'static str {
        match self {
            Self::Routes => "routes",
            Self::Services => "services",
            Self::Upstreams => "upstreams",
            Self::Consumers | Self::Credentials => "consumers",
            Self::ConsumerGroups => "consumer_groups",
            Self::PluginConfigs => "plugin_configs",
            Self::GlobalRules => "global_rules",
            Self::Ssls => "ssls",
            Self::PluginMetadata => "plugin_metadata",
            Self::StreamRoutes => "stream_routes",
            Self::Protos => "protos",
            Self::Secrets => "secrets",
        }
    }
}

/// Key of a resource: `routes/1`, `consumers/jack/credentials/c1`, `secrets/vault/1`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key {
    kind: Kind,
    /// Part of the key after the directory.
    id: Arc<str>,
}

/// Error for a text that is no [`Key`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is no place of a resource: it would be KIND/ID, such as routes/1")]
pub struct ParseKeyError(String);

impl Key {
    /// Creates a key; `id` is the part after the directory: `1`, `jack`, `jack/credentials/c1`, `vault/1`.
    #[must_use]
    pub fn new(kind: Kind, id: &str) -> Self {
        Self { kind, id: id.into() }
    }

    /// Kind of the resource.
    #[must_use]
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Part of the key after the directory.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Consumer that a credential belongs to.
    #[must_use]
    pub fn consumer(&self) -> Option<&str> {
        match self.kind {
            Kind::Credentials => self.id.split_once('/').map(|(consumer, _)| consumer),
            _ => None,
        }
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.kind.directory(), self.id)
    }
}

impl FromStr for Key {
    type Err = ParseKeyError;

    fn from_str(text: &str) -> Result<Self, ParseKeyError> {
        let wrong = || ParseKeyError(text.to_owned());
        let (directory, id) = text.split_once('/').ok_or_else(wrong)?;
        let parts: Vec<&str> = id.split('/').collect();
        if parts.iter().any(|part| part.is_empty()) {
            return Err(wrong());
        }
        let kind = match (directory, parts.as_slice()) {
            ("consumers", [_, "credentials", _]) => Kind::Credentials,
            ("secrets", [_, _]) => Kind::Secrets,
            ("secrets", _) => return Err(wrong()),
            (_, [_]) => {
                let named = |kind: &Kind| kind.directory() == directory;
                Kind::ALL.into_iter().find(named).ok_or_else(wrong)?
            }
            _ => return Err(wrong()),
        };
        Ok(Self::new(kind, id))
    }
}

#[cfg(test)]
mod tests {
    use super::{Key, Kind};

    #[test]
    fn keys_are_read_and_written() {
        let cases = [
            ("routes/1", Some((Kind::Routes, "1"))),
            ("consumers/jack", Some((Kind::Consumers, "jack"))),
            ("consumers/jack/credentials/c1", Some((Kind::Credentials, "jack/credentials/c1"))),
            ("secrets/vault/1", Some((Kind::Secrets, "vault/1"))),
            ("plugin_metadata/prometheus", Some((Kind::PluginMetadata, "prometheus"))),
            ("routes", None),
            ("routes/", None),
            ("routes/1/2", None),
            ("secrets/1", None),
            ("foos/1", None),
            ("consumers/jack/credentials", None),
        ];
        for (text, expected) in cases {
            let key = text.parse::<Key>().ok();
            assert_eq!(key.as_ref().map(|key| (key.kind(), key.id())), expected, "{text}");
            if let Some(key) = key {
                assert_eq!(key.to_string(), text);
            }
        }
    }
}
