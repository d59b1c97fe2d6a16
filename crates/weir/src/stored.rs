//! Configuration in a store, embedded or etcd: opening, checking, serving, and the last-good copy.

pub(crate) mod copy;
pub(crate) mod data_dir;
pub(crate) mod etcd;
pub(crate) mod gateways;
pub(crate) mod live;
