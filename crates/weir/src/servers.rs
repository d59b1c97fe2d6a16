//! Servers beside the data plane: Admin API, control API, metrics and status.

pub(crate) mod admin;
pub(crate) mod admin_keys;
pub(crate) mod control;
pub(crate) mod health_pages;
pub(crate) mod insight;
pub(crate) mod kong_admin;
pub(crate) mod login;
pub(crate) mod metrics;
pub(crate) mod pages;
pub(crate) mod schemas;
pub(crate) mod server_info;
pub(crate) mod status;
