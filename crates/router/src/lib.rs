//! Finds the route of a request.
//!
//! Routes are compiled with [`Router::build`]; [`Router::find`] then leads from a request to the number of its route, and
//! [`Router::explain`] tells how it got there. [`Router::change`] makes a router with some routes changed. The rules are those of Apache APISIX.
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
//! A star is a wildcard where it begins a segment, and at the end of a path without other wildcards. It takes one segment
//! or more, slashes and all, and a segment may be empty. A parameter (`:id`, only with [`Mode::UriWithParameter`]) takes
//! exactly one segment that is not empty. Everything else is taken by its letters: case counts, and so does a slash at the
//! end. [`literal_parameter`] tells of a path that does not mean what it seems to mean.
//!
//! Where a path can be split among several stars in more than one way, the first star takes as much as possible, then the
//! second.
//!
//! # Hosts
//! `foo.test` is that host, `*.foo.test` is every host below it at any depth and not `foo.test` itself, and `*` is every
//! host, also none. Case does not count. A host is compared without its port, unless the pattern has a port: then it is
//! compared to the whole Host field.
//!
//! # Which route wins
//! 1. With [`Mode::HostUri`], the host decides first: routes for the very host, then those with wildcards, the longest
//!    first, then those without any host; at equal rank a pattern with a port goes first. What follows is decided among
//!    the routes of one host before the next is looked at. With the other modes the host is a condition like the method.
//! 2. The path without wildcards goes first. Then the paths with wildcards, by their text before the first wildcard: the
//!    longest goes first. So a plain path of low priority beats a prefix of high priority.
//! 3. Among those with the same text there, the greater `priority` goes first, then the longer path, then the one of
//!    lower `order`, then the one of lower number (and of two paths or hosts of one route, the first in its own list).
//! 4. A candidate whose other conditions fail gives way to the next one, down to shorter prefixes and other hosts. The
//!    conditions are methods, hosts where they have not decided already, networks of the client's address and `vars`; all
//!    have to hold. An IPv4 address that is mapped into IPv6 counts as IPv4.
//!
//! # What it costs
//! A path without wildcards costs one hash lookup, a prefix one walk down a radix tree along the path, parameters one
//! lookup a segment, hosts one lookup more: the cost depends on the request and on how many candidates fail a condition,
//! not on how many routes there are. Two things are compared one by one: the candidates of one and the same path, and the
//! paths with more text behind an inner star that share the text in front of it. Nothing is allocated, but for [`Params`]
//! on its first use and for what a regular expression in `vars` needs on its first use in a thread.
//!
//! [`Router::change`] makes anew what leads to the routes in question and shares the rest: the shards of the hash tables
//! that their hosts and paths are in, the blocks of the radix trees on the way to their prefixes, the pieces of [`Slots`]
//! that their numbers are in. One route among 100,000 costs some ten microseconds, and about as much when the router before is freed;
//! the example `change` measures it. Only the candidates of one and the same path are always copied together.

mod block;
mod candidate;
mod change;
mod host;
mod index;
mod method;
mod needs;
mod numbered;
mod pattern;
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
