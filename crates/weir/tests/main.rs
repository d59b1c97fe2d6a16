//! Black-box tests: the real binary with real files, raw sockets and real origins.
//!
//! One program, so that all tests share the [`harness`] and run side by side: a new file needs its line here, and takes
//! what it needs with `use crate::harness::…`. The longest ones wait, so more threads than cores pay:
//! `cargo test -p weir --test blackbox -- --test-threads 8`.
#![allow(clippy::disallowed_methods, reason = "tests measure time and have no worker clock")]
#![allow(clippy::disallowed_types, reason = "origins are ordinary threads that share what they have seen")]

mod harness;

mod admin;
mod admin_requests;
mod balancing;
mod batches;
mod bodies;
mod body_variables;
mod browsers;
mod budget;
mod certificates;
mod changes;
mod cli;
mod coding;
mod compiled_size;
mod config_yaml;
mod control;
mod control_api;
mod credentials_logged;
mod cut_off;
mod descriptors;
mod dns;
mod documentation;
mod etcd;
mod etcd_loss;
mod etcd_store;
mod extensions;
mod file_modes;
mod forward_auth;
mod forwarding;
mod handover;
mod health;
mod http1;
mod imports;
mod left_out;
mod limiters;
mod limits;
mod listeners;
mod listings;
mod merging;
mod mirror;
mod mixture;
mod observe;
mod order;
mod passive_health;
mod paths;
mod plugin_fields;
mod plugins;
mod priority;
mod protos;
mod proxy_protocol;
mod quickstart;
mod redis;
mod reload;
mod reports;
mod retries;
mod routing;
mod secrets;
mod secrets_shown;
mod set_aside;
mod signatures;
mod splitting;
mod standalone;
mod store;
mod streaming;
mod strict;
mod systemd;
mod tls;
mod tls_scan;
mod tokens;
mod trust;
mod upgrade;
mod upstreams;
mod workers;
mod workspace;
