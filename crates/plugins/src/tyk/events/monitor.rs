//! Triggers of quotas (`monitor` of `tyk.conf`): a web hook is told that a share of a quota is used.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;
use weir_plugin::{BuildCx, Invalid};

use super::{Hook, MetaConf, send};
use crate::tyk::fetch::Fetch;
use crate::tyk::sessions::{Limits, Session};

/// The monitor of the gateway.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
pub(in crate::tyk) struct Conf {
    /// The web hook.
    configuration: MetaConf,
    /// Percent of every quota; 0: keys alone say when it is told.
    global_trigger_limit: f64,
    /// Looks at quotas of keys.
    monitor_user_keys: bool,
    /// Looks at quotas of organisations.
    monitor_org_keys: bool,
}

/// The same, compiled.
#[derive(Debug)]
pub(in crate::tyk) struct Compiled {
    /// Sets it apart from others.
    name: String,
    hook: Hook,
    global: f64,
    is_of_keys: bool,
    is_of_organisations: bool,
}

impl Compiled {
    /// # Errors
    /// The web hook cannot be asked.
    pub(in crate::tyk) fn new(conf: Conf) -> Result<Self, Invalid> {
        Ok(Self {
            name: format!("tyk monitor {conf:?}"),
            global: conf.global_trigger_limit,
            is_of_keys: conf.monitor_user_keys,
            is_of_organisations: conf.monitor_org_keys,
            hook: Hook::compile(conf.configuration, "monitor", "configuration")?,
        })
    }

    /// The monitor, one for all APIs, so that what is not told again is not told by another API.
    pub(in crate::tyk) fn build(self, build: &BuildCx<'_>) -> Arc<Monitor> {
        let (name, fetch) = (self.name.clone(), Arc::new(Fetch::new(build.network)));
        build.states.get_or_create(&name, || Monitor { rule: self, fetch })
    }
}

/// A monitor.
#[derive(Debug)]
pub(in crate::tyk) struct Monitor {
    rule: Compiled,
    fetch: Arc<Fetch>,
}

impl Monitor {
    /// Looks at the quota of a key, of which requests are used, at times in milliseconds since 1970 and on the clock of the
    /// process.
    pub(in crate::tyk) fn look_at_key(&self, session: &Session, limits: &Limits, used: u64, now: (u64, u64)) {
        if self.rule.is_of_keys {
            self.look(session, limits, &session.name, used, now);
        }
    }

    /// Looks at the quota of an organisation.
    pub(in crate::tyk) fn look_at_organisation(&self, session: &Session, used: u64, now: (u64, u64)) {
        if self.rule.is_of_organisations {
            self.look(session, &session.limits, "", used, now);
        }
    }

    fn look(&self, session: &Session, limits: &Limits, key: &str, used: u64, (unix_ms, now_ms): (u64, u64)) {
        let Some(quota) = limits.quota else { return };
        let renews = u64::try_from(session.quota_renews).unwrap_or_default();
        if limits.renewal.is_none() && renews.saturating_mul(1000) <= unix_ms {
            // As in Tyk, for which it begins anew with the next request.
            return;
        }
        let percent = used as f64 / quota as f64 * 100.0;
        let global = Some(self.rule.global).filter(|limit| *limit > 0.0);
        let mut limits = global.into_iter().chain(session.triggers.iter().copied());
        let Some(limit) = limits.find(|limit| percent >= *limit) else { return };
        let meta = json!({
            "Message": "Quota trigger reached", "OrgID": session.org, "Key": key, "TriggerLimit": limit as i64,
            "UsagePercentage": percent as i64,
        });
        if let Some(request) = self.rule.hook.request("TriggerExceeded", &meta, now_ms) {
            send(Arc::clone(&self.fetch), request);
        }
    }
}
