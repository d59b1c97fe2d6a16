//! Black-box tests of the configuration model.

mod changes;
mod checks;
mod environment;
mod limits;
mod node;
mod oddities;
mod reference;
mod references;
mod scale;
mod settings;
mod support;
