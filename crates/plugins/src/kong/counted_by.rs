//! Identity that limits count requests by.

use weir_plugin::{HookCx, Invalid};
use weir_wire::name::FieldName;

use super::consumer::id_of_consumer;

/// Identity that requests are counted by. A request without it is counted by the client's address.
#[derive(Debug)]
pub(super) enum CountedBy {
    Consumer,
    Credential,
    Address,
    /// All requests of a service together.
    Service,
    Header(FieldName),
    /// All requests with this path together.
    Path(Vec<u8>),
}

impl CountedBy {
    /// The header of a configuration, whose name stands in `header_name`.
    pub(super) fn header(name: Option<&str>) -> Result<Self, Invalid> {
        let name = name.ok_or_else(|| Invalid::new("header_name", "required field missing"))?;
        let name = FieldName::new(name).ok_or_else(|| Invalid::new("header_name", "expected the name of a header"))?;
        Ok(Self::Header(name))
    }

    /// The path of a configuration, which stands in `path`.
    pub(super) fn path(path: Option<String>) -> Result<Self, Invalid> {
        let path = path.ok_or_else(|| Invalid::new("path", "required field missing"))?;
        Ok(Self::Path(path.into_bytes()))
    }

    /// The identity of a request; `None`: it goes by the client's address.
    pub(super) fn find<'c>(&self, cx: &'c impl HookCx) -> Option<&'c [u8]> {
        let view = cx.view();
        let credential = || view.tables()?.consumers.credential(view.caller()?).map(str::as_bytes);
        match self {
            Self::Consumer => id_of_consumer(cx),
            Self::Credential => credential().or_else(|| id_of_consumer(cx)),
            Self::Address => None,
            Self::Service => {
                let service = view.route().and_then(|route| route.service_id.as_ref());
                service.map(|service| service.text.as_bytes())
            }
            Self::Header(name) => view.request().field(name),
            Self::Path(path) => Some(view.request().path()).filter(|found| found == path),
        }
    }
}
