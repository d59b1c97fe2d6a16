//! Rates and quotas of keys and of APIs.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::Deserialize;
use weir_plugin::BuildCx;

use super::Refusal;
use crate::traffic::PlanCounts;
use crate::traffic::limit_count::counter::{Charge, MAX_COUNT, Quota, Taken, WindowKind};
use crate::tyk::sessions::{Limits, Session, write_quota_name};
use crate::tyk::shared::Known;

/// A number of requests in a time.
#[derive(Clone, Copy, Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
pub(super) struct Rate {
    /// Requests.
    rate: f64,
    /// Seconds.
    per: f64,
}

/// Window in milliseconds of a quota that never begins anew: a hundred years.
const FOR_EVER: u64 = 100 * 365 * 86_400_000;

/// Refusal where there is no room for another count.
const NO_ROOM: Refusal = (500, "There is no room for another count (limits.limit_keys)");

/// The counts of an API. Their names are made at the end of `room`, which is scratch memory; `now` are milliseconds since
/// 1970.
#[derive(Debug)]
pub(super) struct Counters {
    counts: Arc<PlanCounts>,
    api: Box<str>,
    global: Option<Rate>,
}

/// Names and scope of a count.
pub(super) struct Scope<'s> {
    pub(super) session: &'s Session,
    /// Name under which the requests of the caller count.
    pub(super) name: &'s str,
    /// Scope that the limit counts apart: an API, a policy, an endpoint.
    pub(super) apart: &'s str,
}

impl Counters {
    pub(super) fn new(build: &BuildCx<'_>, api: &str, global: Option<Rate>) -> Self {
        let global = global.filter(|limit| limit.rate > 0.0 && limit.per > 0.0);
        Self { counts: PlanCounts::of(build.states, build.limit_keys), api: api.into(), global }
    }

    /// Counts a request against the limit of the whole API.
    pub(super) fn of_api(&self, now: u64, room: &mut Vec<u8>, tells: bool, known: &mut Known) -> Result<(), Refusal> {
        let Some(Rate { rate, per }) = self.global else { return Ok(()) };
        let (count, per) = (rate.ceil() as u64, (per * 1000.0) as u64);
        let taken = self.take(now, room, &["tyk api ", &self.api], count, per)?;
        if tells {
            tell(now, count, taken, known);
        }
        if taken.passed { Ok(()) } else { Err((429, "API Rate Limit Exceeded")) }
    }

    /// Counts a request against the limit of one path of the API.
    pub(super) fn of_path(
        &self,
        now: u64,
        room: &mut Vec<u8>,
        (path, method, Rate { rate, per }): (&str, &str, Rate),
    ) -> Result<(), Refusal> {
        if rate <= 0.0 || per <= 0.0 {
            return Ok(());
        }
        let name = ["tyk api ", &self.api, ":", method, ":", path];
        let taken = self.take(now, room, &name, rate.ceil() as u64, (per * 1000.0) as u64)?;
        if taken.passed { Ok(()) } else { Err((429, "API Rate Limit Exceeded")) }
    }

    /// Counts a request against a rate. The last change of the session begins a new window.
    pub(super) fn rate(
        &self,
        now: u64,
        room: &mut Vec<u8>,
        scope: &Scope<'_>,
        limits: &Limits,
        known: Option<&mut Known>,
    ) -> Result<(), Refusal> {
        let Some(rate) = limits.rate else { return Ok(()) };
        let Scope { session, name, apart } = scope;
        let name = ["tyk rate ", name, ":", apart, ":", &session.last_updated];
        let taken = self.take(now, room, &name, rate, limits.per)?;
        if let Some(known) = known {
            tell(now, rate, taken, known);
        }
        if taken.passed { Ok(()) } else { Err((429, "Rate Limit Exceeded")) }
    }

    /// Counts a request against a quota, and keeps what clients are told of it unless they are told of the rate. It gives the
    /// requests that are used.
    pub(super) fn quota(
        &self,
        now: u64,
        room: &mut Vec<u8>,
        scope: &Scope<'_>,
        limits: &Limits,
        known: Option<&mut Known>,
    ) -> Result<u64, Refusal> {
        let Some(quota) = limits.quota else {
            if let Some(known) = known {
                known.told = [limits.quota_max, 0, scope.session.quota_renews];
            }
            return Ok(0);
        };
        let Scope { session, name, apart } = scope;
        let window = limits.renewal.unwrap_or(FOR_EVER).min(FOR_EVER);
        let start = room.len();
        write_quota_name(name, apart, session.quota_epoch, room);
        let taken = self.ask(now, room.get(start..).unwrap_or_default(), quota, window, window);
        room.truncate(start);
        let taken = taken?;
        if let Some(known) = known {
            let reset = match limits.renewal {
                Some(_) => (now + taken.reset).div_ceil(1000) as i64,
                None => session.quota_renews,
            };
            known.told = [limits.quota_max, taken.remaining as i64, reset];
        }
        if taken.passed { Ok(quota.saturating_sub(taken.remaining)) } else { Err((403, "Quota exceeded")) }
    }

    /// Counts in a window that ends with the process.
    fn take(&self, now: u64, room: &mut Vec<u8>, name: &[&str], count: u64, per: u64) -> Result<Taken, Refusal> {
        let start = room.len();
        name.iter().for_each(|part| room.extend_from_slice(part.as_bytes()));
        let taken = self.ask(now, room.get(start..).unwrap_or_default(), count, per, 0);
        room.truncate(start);
        taken
    }

    /// Counts in a window that begins with its first request. It outlives the process if `kept` is long enough.
    fn ask(&self, now: u64, name: &[u8], count: u64, window: u64, kept: u64) -> Result<Taken, Refusal> {
        let quota = Quota { count: count.clamp(1, MAX_COUNT), window: window.max(1), kind: WindowKind::Fixed };
        let charge = Charge { period: kept, ..Charge::one(&quota) };
        self.counts.charge(name, now, &charge).map_err(|_| NO_ROOM)
    }
}

fn tell(now: u64, limit: u64, taken: Taken, known: &mut Known) {
    let reset = (now + taken.reset).div_ceil(1000);
    known.told = [limit as i64, taken.remaining as i64, reset as i64];
}

/// Appends a number with its sign.
pub(super) fn push_signed(out: &mut Vec<u8>, number: i64) {
    if number < 0 {
        out.push(b'-');
    }
    weir_wire::push_number(out, number.unsigned_abs());
}
