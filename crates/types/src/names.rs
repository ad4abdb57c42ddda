//! Values that people call by names: each kind has a list of all it has, with their names.

/// What people call a value; nothing if the list does not have it.
pub fn name_of<'a, T: PartialEq>(names: &'a [(&'a str, T)], value: &T) -> &'a str {
    names.iter().find(|(_, named)| named == value).map_or("", |(name, _)| name)
}

/// The value that people call so.
///
/// # Errors
/// There is none: says which names there are.
pub fn named<T: Copy>(names: &[(&str, T)], name: &str) -> Result<T, String> {
    let found = names.iter().find(|(known, _)| *known == name);
    found.map(|(_, value)| *value).ok_or_else(|| {
        let known: Vec<_> = names.iter().map(|(known, _)| *known).collect();
        format!("expected one of {}", known.join(", "))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_has_its_name_and_no_other() {
        const NAMES: [(&str, u8); 2] = [("one", 1), ("two", 2)];
        assert_eq!((name_of(&NAMES, &2), name_of(&NAMES, &3)), ("two", ""));
        assert_eq!(named(&NAMES, "one"), Ok(1));
        assert_eq!(named(&NAMES, "three"), Err("expected one of one, two".to_owned()));
    }
}
