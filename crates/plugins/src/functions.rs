//! Functions of clouds and methods of services, which answer requests in the place of an upstream.

pub(crate) mod aws_lambda;
pub(crate) mod azure_functions;
pub(crate) mod called;
mod forwarded;
pub(crate) mod http_dubbo;
pub(crate) mod openfunction;
pub(crate) mod openwhisk;
pub(crate) mod signature;
