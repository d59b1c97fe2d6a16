//! Paths with `;` or `\\`, which some servers read in another way than this gateway: what is served has to lead to the
//! same route in every reading, or a client could take one route's rules to another route's path.

use weir_plugin::Request;
use weir_plugin::host::Exchange;
use weir_wire::Reject;
use weir_wire::target::{PathRules, Reading};

use crate::phases;
use crate::snapshot::Snapshot;

/// The refusal of a path whose readings lead to different routes.
pub(crate) const AMBIGUOUS: Reject = Reject::bad("path with ; or \\ that another server may read as another route's");

/// A reading that leads elsewhere.
#[derive(Debug)]
pub(crate) struct OtherWay {
    /// The path in that reading; empty when there is none.
    pub(crate) path: Vec<u8>,
    /// The number of the route that takes it.
    pub(crate) route: Option<u32>,
}

/// The first reading that leads to another route than the gateway's own, or to none, or that `admits` refuses. A path
/// that no route takes is never served, whatever its other readings.
pub(crate) fn other_way(
    x: &mut Exchange,
    snapshot: &Snapshot,
    rules: PathRules,
    admits: impl Fn(&Request) -> bool,
) -> Option<OtherWay> {
    phases::find_route(x, snapshot).ok()?;
    let route = x.matched?.route;
    let found = Reading::ALL.into_iter().find_map(|reading| {
        let Some(mut other) = x.request.read_as(reading, rules) else {
            return Some(OtherWay { path: Vec::new(), route: None });
        };
        x.request.swap_path(&mut other);
        // A condition that cannot be decided leads to no route.
        let _ = phases::find_route(x, snapshot);
        let found = x.matched.map(|matched| matched.route);
        let admitted = admits(&x.request);
        x.request.swap_path(&mut other);
        let same = found == Some(route) && admitted;
        (!same).then(|| OtherWay { path: other.path().to_vec(), route: found })
    });
    x.matched = None;
    found
}
