//! Counts in Redis under the keys of Kong, so that gateways of both kinds count together.

use std::cell::Cell;
use std::sync::Arc;

use weir_plugin::{BuildCx, Slot};

use super::window::Period;
use crate::traffic::limit_count::counter::{Quota, WindowKind};
use crate::traffic::limit_count::remote::{Counted, count};
use crate::traffic::limit_count::synced::Synced;
use crate::traffic::redis::{Redis, together};

/// Id of what a plugin is not configured for.
const NOBODY: &str = "00000000-0000-0000-0000-000000000000";

/// Counts of one instance.
#[derive(Debug)]
pub(in crate::kong) struct Remote {
    redis: Redis,
    /// With `sync_rate`: counts that workers keep, and their interval in milliseconds.
    synced: Option<(Arc<Slot<Synced>>, u64)>,
    /// Beginning of the keys: name of the plugin, route and service that the plugin is configured for.
    prefix: String,
    max_keys: usize,
}

/// A window to count in.
pub(in crate::kong) struct Asked {
    pub(in crate::kong) period: Period,
    /// Beginning of the window, in milliseconds since 1970.
    pub(in crate::kong) begin: u64,
    pub(in crate::kong) limit: u64,
}

/// Units to count in a window of a limit with a name; 0 only asks.
pub(in crate::kong) struct Charge<'n> {
    pub(in crate::kong) asked: Asked,
    pub(in crate::kong) name: &'n str,
    pub(in crate::kong) cost: u64,
}

impl Remote {
    /// `interval` is `sync_rate` in milliseconds; `None` asks Redis for every request.
    pub(in crate::kong) fn new(name: &str, redis: Redis, interval: Option<u64>, build: &BuildCx<'_>) -> Self {
        let id = |kind: &str| build.place.strip_prefix(kind).unwrap_or(NOBODY);
        let prefix = format!("{name}:{}:{}:", id("route/"), id("service/"));
        let synced = interval.map(|interval| {
            let key = format!("kong {name} synced {interval} {} {}", build.place, build.conf.to_json());
            (build.states.get_or_create(&key, Slot::default), interval)
        });
        Self { redis, synced, prefix, max_keys: build.limit_keys }
    }

    /// Counts a request in all windows. The result has, for each, the requests with this one; one above the limit is refused.
    /// `None`: Redis cannot be asked.
    pub(in crate::kong) async fn take(&self, who: &[u8], windows: &[Asked]) -> Option<Vec<u64>> {
        let used: Vec<Cell<Option<u64>>> = windows.iter().map(|_| Cell::new(None)).collect();
        let ask = async |asked: &Asked, used: &Cell<Option<u64>>| {
            let quota = Quota { count: asked.limit, window: asked.period.expiry(), kind: WindowKind::Fixed };
            let key = self.key(who, asked);
            used.set(match &self.synced {
                // Kong counts first and compares then: a refused request counts.
                None => count(&self.redis, &key, &quota, 1, true).await.ok().map(|counted| counted.used),
                Some((slot, interval)) => {
                    let synced = slot.get_or_start(|| Synced::new(&self.redis, *interval, self.max_keys));
                    let above = |Counted { passed, used, .. }| if passed { used } else { asked.limit.max(used) + 1 };
                    synced.take(&key, &quota, 1).await.map(above)
                }
            });
        };
        together(windows.iter().zip(&used).map(|(asked, used)| ask(asked, used))).await;
        used.iter().map(Cell::get).collect()
    }

    /// Counts `cost` units of a named limit in a window, whatever its limit is, and gives the units of the window. `None`: Redis
    /// cannot be asked.
    pub(in crate::kong) async fn add(&self, who: &[u8], charges: &[Charge<'_>]) -> Option<Vec<u64>> {
        let used: Vec<Cell<Option<u64>>> = charges.iter().map(|_| Cell::new(None)).collect();
        let ask = async |charge: &Charge<'_>, used: &Cell<Option<u64>>| {
            let Charge { asked, name, cost } = charge;
            let quota = Quota { count: asked.limit, window: asked.period.expiry(), kind: WindowKind::Fixed };
            let mut key = [self.prefix.as_bytes(), who, b":"].concat();
            weir_wire::push_number(&mut key, asked.begin);
            [":", name, ":", asked.period.name()].iter().for_each(|part| key.extend_from_slice(part.as_bytes()));
            used.set(count(&self.redis, &key, &quota, *cost, true).await.ok().map(|counted| counted.used));
        };
        together(charges.iter().zip(&used).map(|(charge, used)| ask(charge, used))).await;
        used.iter().map(Cell::get).collect()
    }

    fn key(&self, who: &[u8], asked: &Asked) -> Vec<u8> {
        let mut key = Vec::with_capacity(self.prefix.len() + who.len() + 24);
        key.extend_from_slice(self.prefix.as_bytes());
        key.extend_from_slice(who);
        key.push(b':');
        weir_wire::push_number(&mut key, asked.begin);
        key.push(b':');
        key.extend_from_slice(asked.period.name().as_bytes());
        key
    }
}
