//! Configuration that lives in a store, embedded or etcd: opened, checked, kept in force, and copied for a bad day.

pub(crate) mod copy;
pub(crate) mod data_dir;
pub(crate) mod etcd;
pub(crate) mod live;
