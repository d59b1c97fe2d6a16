//! Routing: finds the route of a request.
//!
//! [`Router::build`] compiles routes, [`Router::find`] finds the number of a request's route, and [`Router::explain`]
//! reports the steps that led there. [`Router::change`] creates a router with some routes changed. The rules are
//! those of Apache APISIX.
//!
//! # Paths
//! | written | takes | does not take |
//! |---|---|---|
//! | `/a` | `/a` | `/a/`, `/A` |
//! | `/a/*` | `/a/`, `/a/b`, `/a/b/c` | `/a` |
//! | `/a*` | `/a`, `/ab`, `/a/b` | `/` |
//! | `/*`, `*` | every path | |
//! | `/a/*/b` | `/a/x/b`, `/a/x/y/b` | `/a/b`, `/a/x/b/` |
//! | `/a/*rest` | as `/a/*`; what the star takes is the parameter `rest` | |
//! | `/a/:id` | with parameters, `/a/7`; otherwise only the letters `/a/:id` | `/a/`, `/a/7/`, `/a/7/b` |
//!
//! A star is a wildcard at the beginning of a segment, and at the end of a path without other wildcards. It takes one
//! or more segments, including slashes, and a segment may be empty. A parameter (`:id`, only with
//! [`Mode::UriWithParameter`]) takes exactly one segment that is not empty. All other text is matched literally: it
//! is case-sensitive, and a slash at the end counts. [`literal_parameter`] reports a path with text that only looks
//! like a wildcard.
//!
//! If a path can be split among several stars in more than one way, the first star takes as much as possible, then
//! the second.
//!
//! # Hosts
//! `foo.test` takes only that host, `*.foo.test` takes every host below it at any depth but not `foo.test` itself,
//! and `*` takes every host, also an absent one. Hosts are case-insensitive. They are compared without the port,
//! unless the pattern has a port: then it is compared with the whole Host field.
//!
//! # Which route wins
//! 1. With [`Mode::HostUri`], the host is decided first: routes for exactly this host take precedence over those with
//!    wildcards (the longest first), and those over routes without a host; at equal rank a pattern with a port takes
//!    precedence. The further rules are applied to the routes of one host before those of the next. With the other modes
//!    the host is a condition like the method.
//! 2. A path without wildcards takes precedence. Paths with wildcards follow in the order of their text before the
//!    first wildcard, the longest first. So a plain path of low priority takes precedence over a prefix of high
//!    priority.
//! 3. Among routes with the same text there, the order is: the greater `priority`, then the longer path, then the
//!    lower `order`, then the lower number (and of two paths or hosts of one route, the first in its own list).
//! 4. If another condition of a candidate fails, the next candidate is tried, down to shorter prefixes and other
//!    hosts. The conditions are methods, hosts unless they were decided already, networks of the client's address and
//!    `vars`; all have to hold. An IPv4-mapped IPv6 address counts as IPv4.
//!
//! # Ranks
//! With [`Mode::Ranked`] a path is a prefix by characters (`/a` takes `/a`, `/ab`, `/a/b`), or after `~` a regular
//! expression of the crate `regex` that is matched from the beginning of the path. A host may also end in a wildcard
//! (`foo.*`). Of all paths and hosts whose conditions hold, the one with the greatest rank wins ([`Route::ranks`]),
//! then the lower `order`, then the lower number. A lookup visits the prefixes of the path under each host pattern
//! that takes the host, and the regular expressions whose literal beginning is such a prefix.
//!
//! # Cost
//! A path without wildcards costs one hash lookup, a prefix one walk down a radix tree along the path, parameters one
//! lookup per segment, hosts one more lookup: the cost depends on the request and on the number of candidates with a
//! failing condition, not on the number of routes. Two kinds of candidates are compared one by one: those of the same
//! path, and paths with more text behind an inner star that share the text before it. Nothing is allocated, except
//! for [`Params`] on its first use and for regular expressions in `vars` on their first use in a thread.
//!
//! [`Router::change`] rebuilds the structures that lead to the changed routes and shares the rest: it rebuilds the
//! shards of the hash tables with their hosts and paths, the blocks of the radix trees on the way to their prefixes,
//! and the pieces of [`Slots`] with their numbers. Changing one route among 100,000 costs some ten microseconds, and
//! freeing the previous router about as much; the example `change` measures both. Only the candidates of the same
//! path are always copied together.

mod block;
mod candidate;
mod change;
mod host;
mod index;
mod method;
mod needs;
mod numbered;
mod pattern;
mod ranked;
mod route;
mod router;
mod segments;
mod slots;
mod table;
mod tree;

pub use crate::method::MethodSet;
pub use crate::pattern::literal_parameter;
pub use crate::route::{Mode, Query, Route};
pub use crate::router::{BuildError, Match, Outcome, Params, Router, Step};
pub use crate::slots::{Numbers, Slots};
