//! YAML as a tree that remembers where each value stands.
//!
//! Only what a specification needs: no tags, no merge keys, no directives, one document. Aliases work, but all that they multiply counts against a
//! limit, so a small text cannot become a large tree. Plain scalars mean what the YAML 1.2 core schema says (chapter 10.3): `yes` is text.

use super::{
    error::{Fault, FaultKind, Faults, Span},
    units::shorten,
};
use granit_parser::{ErrorKind, Event, Parser, ScalarStyle, StrInput};
use std::collections::HashMap;

/// Levels of lists and mappings. A specification needs six.
const DEPTH_MAX: usize = 32;

/// Bytes of text and values after every alias is replaced by what it stands for.
const WEIGHT_MAX: usize = 4 << 20;

/// What a value weighs beside its text.
const VALUE_WEIGHT: usize = 16;

#[derive(Debug, Clone)]
pub(super) struct Value {
    pub span: Span,
    pub data: Data,
}

#[derive(Debug, Clone)]
pub(super) enum Data {
    Null,
    Bool(bool),
    /// Kept as written: what range and sign it may have is for the reader to say.
    Number(String),
    Text(String),
    List(Vec<Value>),
    Mapping(Vec<Entry>),
}

#[derive(Debug, Clone)]
pub(super) struct Entry {
    pub key: String,
    pub key_span: Span,
    pub value: Value,
}

impl Value {
    /// The value in words, for "expected ..., found ...".
    pub fn found(&self) -> String {
        match &self.data {
            Data::Null => "nothing".into(),
            Data::Bool(value) => format!("{value}"),
            Data::Number(text) => format!("the number {}", shorten(text)),
            Data::Text(text) => format!("\"{}\"", shorten(text)),
            Data::List(_) => "a list".into(),
            Data::Mapping(_) => "a mapping".into(),
        }
    }

    fn weight(&self) -> usize {
        VALUE_WEIGHT
            + match &self.data {
                Data::Null | Data::Bool(_) => 0,
                Data::Number(text) | Data::Text(text) => text.len(),
                Data::List(values) => values.iter().map(Self::weight).sum(),
                Data::Mapping(entries) => entries.iter().map(|entry| entry.key.len() + entry.value.weight()).sum(),
            }
    }
}

/// The only document of the text; none when the text holds nothing but comments. Duplicate keys go to `faults`; what makes the rest of the text
/// unreadable is the error.
pub(super) fn parse(text: &str, faults: &mut Faults) -> Result<Option<Value>, Fault> {
    let mut options = granit_parser::options! { disallow_directives: true, flow_nesting_limit: DEPTH_MAX, block_nesting_limit: DEPTH_MAX };
    // Whoever else in the build uses the parser may have switched its comment events on.
    options.set_emit_comments(false);
    let parser = Parser::new_from_str_with_options(text, options);
    let mut tree = Tree { parser, text, faults, anchors: HashMap::new(), weight: 0 };
    let mut document = None;
    loop {
        let (event, span) = tree.next()?;
        match event {
            Event::StreamEnd => return Ok(document),
            Event::DocumentStart(..) if document.is_some() => {
                return Err(fault(
                    span,
                    "a second document",
                    "expected one YAML document, found a second one; put each experiment in its own file",
                ));
            }
            Event::Scalar(..) | Event::SequenceStart(..) | Event::MappingStart(..) | Event::Alias(_) => {
                document = Some(tree.value(event, span, 0)?);
            }
            _ => {}
        }
    }
}

struct Tree<'t> {
    parser: Parser<'t, StrInput<'t>>,
    text: &'t str,
    faults: &'t mut Faults,
    anchors: HashMap<usize, Value>,
    weight: usize,
}

impl<'t> Tree<'t> {
    fn next(&mut self) -> Result<(Event<'t>, Span), Fault> {
        let end = self.text.len();
        match self.parser.next() {
            Some(Ok((event, span))) => Ok((event, span.byte_range().unwrap_or(end..end))),
            Some(Err(error)) => {
                let at = error.marker().byte_offset().unwrap_or(end);
                Err(match error.kind() {
                    ErrorKind::RecursionLimitExceeded => too_deep(at..at + 1),
                    kind => Fault::new(FaultKind::Syntax, at..at + 1, "here", format!("not valid YAML: {kind}")),
                })
            }
            None => Ok((Event::StreamEnd, end..end)),
        }
    }

    /// The value that begins with `event`. Anchors become known when their value is complete, so no alias can lie inside its own anchor.
    fn value(&mut self, event: Event<'t>, span: Span, depth: usize) -> Result<Value, Fault> {
        if depth > DEPTH_MAX {
            return Err(too_deep(span));
        }
        let (value, anchor) = match event {
            Event::Scalar(text, style, anchor, tag) => {
                refuse_tag(tag.is_some(), &span)?;
                let data = if style == ScalarStyle::Plain { plain(&text) } else { Data::Text(text.into_owned()) };
                (Value { span, data }, anchor)
            }
            Event::SequenceStart(_, anchor, tag) => {
                refuse_tag(tag.is_some(), &span)?;
                (self.list(span, depth)?, anchor)
            }
            Event::MappingStart(_, anchor, tag) => {
                refuse_tag(tag.is_some(), &span)?;
                (self.mapping(span, depth)?, anchor)
            }
            Event::Alias(id) => {
                let value = self
                    .anchors
                    .get(&id)
                    .ok_or_else(|| fault(span.clone(), "inside its own anchor", "an alias cannot stand inside what it names"))?;
                let weight = value.weight();
                let value = value.clone();
                self.weigh(weight, &span)?;
                return Ok(value);
            }
            _ => return Err(Fault::new(FaultKind::Syntax, span, "here", "not valid YAML: expected a value")),
        };
        if let Data::Number(text) | Data::Text(text) = &value.data {
            self.weigh(text.len(), &value.span)?;
        }
        self.weigh(VALUE_WEIGHT, &value.span)?;
        if anchor != 0 {
            self.weigh(value.weight(), &value.span)?;
            self.anchors.insert(anchor, value.clone());
        }
        Ok(value)
    }

    fn list(&mut self, mut span: Span, depth: usize) -> Result<Value, Fault> {
        let mut values = Vec::new();
        loop {
            let (event, here) = self.next()?;
            if event == Event::SequenceEnd {
                span.end = here.end.max(span.end);
                return Ok(Value { span, data: Data::List(values) });
            }
            values.push(self.value(event, here, depth + 1)?);
        }
    }

    fn mapping(&mut self, mut span: Span, depth: usize) -> Result<Value, Fault> {
        let mut entries: Vec<Entry> = Vec::new();
        let mut seen: HashMap<String, Span> = HashMap::new();
        loop {
            let (event, here) = self.next()?;
            if event == Event::MappingEnd {
                span.end = here.end.max(span.end);
                return Ok(Value { span, data: Data::Mapping(entries) });
            }
            let key = self.value(event, here, depth + 1)?;
            let key_span = key.span.clone();
            let key = match key.data {
                Data::Number(text) | Data::Text(text) => text,
                Data::Bool(value) => value.to_string(),
                _ => return Err(fault(key_span, "not a key", format!("expected a key, found {}; a key is one word", key.found()))),
            };
            if key == "<<" {
                return Err(fault(key_span, "merge key", "merge keys (`<<`) are not part of YAML 1.2; put shared values under `defaults`"));
            }
            self.weigh(key.len(), &key_span)?;
            let (event, here) = self.next()?;
            let value = self.value(event, here, depth + 1)?;
            if let Some(first) = seen.get(&key) {
                let message = format!("the key `{}` stands here a second time; remove one of the two", shorten(&key));
                self.faults.push(fault(key_span, "again here", message).also(first.clone(), "first here"));
                continue;
            }
            seen.insert(key.clone(), key_span.clone());
            entries.push(Entry { key, key_span, value });
        }
    }

    fn weigh(&mut self, weight: usize, span: &Span) -> Result<(), Fault> {
        self.weight += weight;
        if self.weight <= WEIGHT_MAX {
            return Ok(());
        }
        let message = format!("more than {} MiB of values after aliases are replaced; write fewer or smaller values", WEIGHT_MAX >> 20);
        Err(fault(span.clone(), "the limit is reached here", message))
    }
}

fn fault(span: Span, label: &str, message: impl Into<String>) -> Fault {
    Fault::new(FaultKind::Invalid, span, label, message)
}

fn too_deep(span: Span) -> Fault {
    fault(span, "too deep", format!("lists and mappings nested deeper than {DEPTH_MAX} levels; an experiment needs six"))
}

fn refuse_tag(tagged: bool, span: &Span) -> Result<(), Fault> {
    if tagged {
        return Err(fault(
            span.clone(),
            "tagged value",
            "YAML tags (`!...`) are not used here; write the value alone, in quotes where it must be text",
        ));
    }
    Ok(())
}

/// What a scalar without quotes means: YAML 1.2.2, 10.3.2.
fn plain(text: &str) -> Data {
    match text {
        "" | "~" | "null" | "Null" | "NULL" => Data::Null,
        "true" | "True" | "TRUE" => Data::Bool(true),
        "false" | "False" | "FALSE" => Data::Bool(false),
        _ if is_number(text) => Data::Number(text.to_owned()),
        _ => Data::Text(text.to_owned()),
    }
}

fn is_number(text: &str) -> bool {
    let all = |digits: &str, set: fn(&char) -> bool| !digits.is_empty() && digits.chars().all(|digit| set(&digit));
    if let Some(digits) = text.strip_prefix("0x") {
        return all(digits, char::is_ascii_hexdigit);
    }
    if let Some(digits) = text.strip_prefix("0o") {
        return all(digits, |digit| ('0'..='7').contains(digit));
    }
    let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
    if matches!(unsigned, ".inf" | ".Inf" | ".INF") || matches!(text, ".nan" | ".NaN" | ".NAN") {
        return true;
    }
    // What is left of the core schema's numbers is what Rust reads too, less the words `inf` and `nan`.
    unsigned.starts_with(|first: char| first.is_ascii_digit() || first == '.') && unsigned.parse::<f64>().is_ok()
}
