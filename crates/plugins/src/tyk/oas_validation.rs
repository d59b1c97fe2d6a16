//! `oas_validation`: requests have to follow the operations of an API's own document (`validateRequest` in the OAS form).

use schemars::JsonSchema;
use serde::Deserialize;
use weir_plugin::{CompileCx, Compiled, Define, Flow, Invalid, Phases, Plugin, RequestCx};

use super::body;
use crate::requests::oas_validator::{Document, Skipped, compile_here};

/// The definition.
#[derive(Debug)]
pub(crate) struct OasValidation;

/// On the route of an API.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
pub(crate) struct Conf {
    /// Documents with the operations that are checked, under the listen path.
    documents: Vec<DocumentConf>,
}

/// Operations with one status.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
struct DocumentConf {
    /// The status of a refusal.
    status: u16,
    /// The document in JSON.
    document: String,
}

impl Define for OasValidation {
    const NAME: &'static str = "oas_validation";
    const PRIORITY: i32 = 930;
    const PHASES: Phases = Phases::ACCESS;
    const DOC: &'static str = "Requests have to follow the document of an API.";
    const EXAMPLE: &'static str = "{documents: []}\n";

    type Conf = Conf;
    type ConsumerConf = ();

    fn compile(conf: Conf, cx: &CompileCx<'_>) -> Option<Compiled> {
        let mut documents = Vec::new();
        for (at, DocumentConf { status, document }) in conf.documents.into_iter().enumerate() {
            if !(400..600).contains(&status) {
                let text = format!("expected a status from 400 to 599, found {status}");
                cx.say([Invalid::new(format!("documents[{at}].status"), text)]);
                return None;
            }
            let place = format!("documents[{at}].document");
            let compiled = compile_here(&document).map_err(|fault| Invalid::new(place, fault));
            documents.push((status, cx.ok(compiled)?));
        }
        Some(Compiled::ready(Validation { documents: documents.into() }))
    }
}

/// An instance.
#[derive(Debug)]
struct Validation {
    /// Statuses, and the operations that have them.
    documents: Box<[(u16, Document)]>,
}

impl Plugin for Validation {
    fn access(&self, cx: &mut RequestCx<'_>) -> Flow {
        let own = self.documents.iter().find(|(_, document)| document.has(cx.request()));
        let Some((status, document)) = own else { return Flow::Continue };
        if cx.body().is_none() && document.has_body(cx.request()) {
            return Flow::AwaitBody;
        }
        match document.check(cx.request(), &Skipped::default()) {
            Ok(()) => Flow::Continue,
            Err(why) => body::error(cx, *status, &format!("request validation error: {why}"), &[]),
        }
    }
}
