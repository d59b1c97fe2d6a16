//! The process: its start and end, signals, upgrades, systemd, descriptors, logs and memory.

pub(crate) mod acme;
pub(crate) mod control;
pub(crate) mod descriptors;
pub(crate) mod drain;
pub(crate) mod error_log;
pub(crate) mod handover;
pub(crate) mod inherited;
pub(crate) mod keeper;
pub(crate) mod kong_tokens;
pub(crate) mod log_file;
pub(crate) mod names;
pub(crate) mod ocsp;
pub(crate) mod peaks;
pub(crate) mod plan_counts;
pub(crate) mod portal;
pub(crate) mod preconditions;
pub(crate) mod priority;
pub(crate) mod reports;
pub(crate) mod runner;
pub(crate) mod serving;
pub(crate) mod signals;
pub(crate) mod systemd;
pub(crate) mod threescale;
pub(crate) mod tyk;
pub(crate) mod upgrade;
pub(crate) mod usage;
