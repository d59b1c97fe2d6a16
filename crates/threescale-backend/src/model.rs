//! Services and applications as they are stored.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use serde_json::Value;
use weir_config::{ResourceKey, ResourceKind};
use weir_store::Secrets;

use crate::period::Period;

/// Largest value of a limit: what a count can hold.
pub(crate) const MOST: u64 = (1 << 40) - 1;

/// A service, with its metrics and the limits of its plans. What is told of a service before the service itself, such as
/// its metrics, is kept in one without a provider key, which authorises nothing.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default)]
pub(crate) struct Service {
    pub(crate) id: String,
    pub(crate) provider_key: Option<String>,
    /// True for the service of calls with the provider key and without a service.
    pub(crate) is_default: bool,
    /// `1`: user keys; `2`: application ids and keys; `oauth`: OpenID Connect.
    pub(crate) backend_version: Option<String>,
    pub(crate) referrer_filters_required: bool,
    pub(crate) is_suspended: bool,
    pub(crate) tokens: BTreeSet<String>,
    pub(crate) metrics: Vec<Metric>,
    /// By the id of the plan.
    pub(crate) limits: BTreeMap<String, Vec<Limit>>,
}

/// A metric, or a method, which is a metric with a parent.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize)]
pub(crate) struct Metric {
    pub(crate) id: String,
    pub(crate) name: String,
    pub(crate) parent_id: Option<String>,
}

/// The most that an application on a plan uses of a metric in a period.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize)]
pub(crate) struct Limit {
    pub(crate) metric_id: String,
    pub(crate) period: Period,
    pub(crate) value: u64,
}

/// An application. One without a state is not there yet: only its keys have been told.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default)]
pub(crate) struct Application {
    pub(crate) service_id: String,
    pub(crate) id: String,
    /// `active`, or any other word for an application that is not.
    pub(crate) state: Option<String>,
    pub(crate) plan_id: Option<String>,
    pub(crate) plan_name: Option<String>,
    pub(crate) redirect_url: Option<String>,
    pub(crate) user_keys: BTreeSet<String>,
    pub(crate) keys: BTreeSet<String>,
    pub(crate) referrer_filters: BTreeSet<String>,
}

/// Something that is stored.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Record {
    Service(Service),
    Application(Application),
}

impl Record {
    /// The key in the store.
    pub(crate) fn key(&self) -> ResourceKey {
        match self {
            Self::Service(service) => service_key(&service.id),
            Self::Application(application) => application_key(&application.service_id, &application.id),
        }
    }
}

/// The key of a service in the store. An id may be any text.
pub(crate) fn service_key(id: &str) -> ResourceKey {
    ResourceKey::new(ResourceKind::Entities, &format!("services/{}", hex(id)))
}

/// The key of an application in the store.
pub(crate) fn application_key(service: &str, id: &str) -> ResourceKey {
    ResourceKey::new(ResourceKind::Entities, &format!("applications/{}-{}", hex(service), hex(id)))
}

fn hex(text: &str) -> String {
    text.bytes().map(|byte| format!("{byte:02x}")).collect()
}

/// True if the way up from a metric leads to itself.
pub(crate) fn is_in_circle(metrics: &[Metric], id: &str) -> bool {
    let parent = |id: &str| metrics.iter().find(|metric| metric.id == id)?.parent_id.as_deref();
    let mut at = parent(id);
    for _ in metrics {
        match at {
            Some(above) if above == id => return true,
            Some(above) => at = parent(above),
            None => return false,
        }
    }
    // A circle further up.
    at.is_some()
}

/// The secrets of what is stored: provider keys, service tokens, and keys of applications.
#[derive(Debug, Clone, Copy)]
pub struct StoredSecrets;

impl Secrets for StoredSecrets {
    fn visit(&self, _: ResourceKind, value: &mut Value, each: &mut dyn FnMut(&mut String)) {
        let fields = ["/service/provider_key", "/service/tokens", "/application/user_keys", "/application/keys"];
        for pointer in fields {
            match value.pointer_mut(pointer) {
                Some(Value::String(text)) => each(text),
                Some(Value::Array(texts)) => {
                    for text in texts {
                        if let Value::String(text) = text {
                            each(text);
                        }
                    }
                }
                _ => {}
            }
        }
    }

    fn may_be_in(&self, json: &str) -> bool {
        ["provider_key", "tokens", "user_keys", "keys"].iter().any(|name| json.contains(name))
    }
}

#[cfg(test)]
mod tests {
    use super::{Application, Record, Service, StoredSecrets, application_key, service_key};
    use weir_config::ResourceKind;
    use weir_store::Secrets;

    #[test]
    fn secrets_of_records_are_known() {
        let service = Service {
            id: "1".into(),
            provider_key: Some("provider".into()),
            tokens: ["token".to_owned()].into(),
            ..Service::default()
        };
        let application = Application {
            service_id: "1".into(),
            id: "a".into(),
            user_keys: ["user".to_owned()].into(),
            keys: ["key".to_owned(), "other".to_owned()].into(),
            ..Application::default()
        };
        for (record, secrets) in [
            (Record::Service(service), vec!["provider", "token"]),
            (Record::Application(application), vec!["user", "key", "other"]),
        ] {
            let mut json = serde_json::to_value(&record).expect("JSON");
            assert_eq!(serde_json::from_value::<Record>(json.clone()).expect("a record"), record);
            assert!(StoredSecrets.may_be_in(&json.to_string()));
            let mut found = Vec::new();
            StoredSecrets.visit(ResourceKind::Entities, &mut json, &mut |text| found.push(text.clone()));
            assert_eq!(found, secrets);
        }
    }

    #[test]
    fn keys_of_records_are_apart() {
        assert_ne!(application_key("a", "bc"), application_key("ab", "c"));
        assert_ne!(service_key("a"), service_key("A"));
    }
}
