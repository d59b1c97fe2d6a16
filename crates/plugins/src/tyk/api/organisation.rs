//! Limits of an organisation, which all requests to its APIs count against (`enforce_org_quotas`).

use std::sync::Arc;

use schemars::JsonSchema;
use serde::Deserialize;
use weir_plugin::{BuildCx, Invalid};

use super::Refusal;
use super::jwt::Stop;
use super::limits::{Counters, Scope};
use crate::tyk::events::Event;
use crate::tyk::sessions::remote::{self, Remote};
use crate::tyk::sessions::{Naming, Session, Sessions, organisation_name};
use crate::tyk::shared::{Known, Progress, Wait};

/// The place of the organisation's session.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
pub(super) struct Conf {
    /// True if names of quotas are hashes.
    hash_keys: bool,
    /// The function of hashes.
    hash_key_function: String,
    /// The Redis of sessions.
    storage: remote::Conf,
}

/// The organisation of an API.
#[derive(Debug)]
pub(super) struct Organisation {
    /// Its id.
    id: Box<str>,
    /// Name of its session.
    name: Box<str>,
    /// Name of its quota in Redis.
    quota: Box<[u8]>,
    sessions: Arc<Sessions>,
    remote: Option<Remote>,
}

const INACTIVE: Refusal = (403, "this organisation access has been disabled, please contact your API administrator");
const QUOTA: Refusal = (403, "This organisation quota has been exceeded, please contact your API administrator");
const RATE: Refusal = (403, "This organisation rate limit has been exceeded, please contact your API administrator");
/// Refusal where Redis does not answer.
const AWAY: Refusal = (403, "Access to this API has been disallowed");

/// The event that a refusal is; `None` for one that is none.
pub(super) fn event(text: &str) -> Option<Event> {
    match text {
        _ if text == QUOTA.1 => Some(Event::OrgQuotaExceeded),
        _ if text == RATE.1 => Some(Event::OrgRateLimitExceeded),
        _ => None,
    }
}

impl Organisation {
    pub(super) fn build(conf: &Conf, org: &str, build: &BuildCx<'_>) -> Result<Self, Invalid> {
        let naming = Naming::new(conf.hash_keys, &conf.hash_key_function);
        Ok(Self {
            id: org.into(),
            name: organisation_name(org).into(),
            quota: naming.name(org).into_bytes().into(),
            sessions: Sessions::of(build.states),
            remote: conf.storage.build(build)?,
        })
    }

    /// Its id.
    pub(super) fn id(&self) -> &str {
        &self.id
    }

    /// Reads the session from Redis.
    pub(super) async fn read(&self, now_ms: u64, progress: &mut Progress) {
        progress.organisation = Some(match &self.remote {
            Some(remote) => remote.session(self.name.as_bytes(), now_ms).await.map_err(drop),
            None => Err(()),
        });
    }

    /// Counts a request against the quota in Redis.
    pub(super) async fn count(&self, renewal: u64, progress: &mut Progress) {
        progress.organisation_counted = Some(match &self.remote {
            Some(remote) => remote.count(&self.quota, renewal).await.map_err(drop),
            None => Err(()),
        });
    }

    /// The session; `None` for an organisation without one, which has no limits.
    fn session(&self, now_ms: u64, progress: &Progress) -> Result<Option<Arc<Session>>, Stop> {
        if self.remote.is_none() {
            return Ok(self.sessions.find(self.name.as_bytes()));
        }
        match &progress.organisation {
            Some(read) => read.clone().map_err(|()| AWAY.into()),
            None => match self.sessions.recall(self.name.as_bytes(), now_ms) {
                Some(session) => Ok(Some(session)),
                None => Err(Stop::Waits(Wait::Organisation)),
            },
        }
    }

    /// Counts a request, once, against the rate and the quota.
    pub(super) fn check(
        &self,
        now_ms: u64,
        unix_ms: u64,
        room: &mut Vec<u8>,
        counters: &Counters,
        known: &mut Known,
    ) -> Result<(), Stop> {
        if known.progress.has_organisation {
            return Ok(());
        }
        let Some(session) = self.session(now_ms, &known.progress)? else {
            known.progress.has_organisation = true;
            return Ok(());
        };
        if session.is_inactive {
            return Err(INACTIVE.into());
        }
        let scope = Scope { session: &session, name: &self.name, apart: "" };
        let limits = &session.limits;
        if known.progress.organisation_counted.is_none() {
            counters.rate(unix_ms, room, &scope, limits, None).map_err(|(status, text)| match status {
                429 => RATE,
                _ => (status, text),
            })?;
        }
        match (&self.remote, limits.quota) {
            (_, None) => {}
            (None, Some(_)) => {
                let used = counters.quota(unix_ms, room, &scope, limits, None);
                let used = used.map_err(|(status, text)| match status {
                    403 => QUOTA,
                    _ => (status, text),
                })?;
                known.organisation_used = Some((Arc::clone(&session), used));
            }
            (Some(_), Some(quota)) => match known.progress.organisation_counted {
                None => {
                    let renewal = limits.renewal.unwrap_or_default() / 1000;
                    return Err(Stop::Waits(Wait::OrganisationQuota(renewal)));
                }
                Some(Err(())) => return Err(AWAY.into()),
                Some(Ok(counted)) if counted.used > quota => return Err(QUOTA.into()),
                Some(Ok(counted)) => known.organisation_used = Some((Arc::clone(&session), counted.used)),
            },
        }
        known.progress.has_organisation = true;
        Ok(())
    }
}
