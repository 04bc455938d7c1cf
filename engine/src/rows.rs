//! Keys and values in one buffer: what a scan gives, without an allocation for each row.

use std::cmp::Ordering;

/// A key and its value.
pub type KeyValue = (Vec<u8>, Vec<u8>);

/// Where a row lies in the buffer: its key, and behind it its value.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    pub(crate) at: usize,
    pub(crate) key_bytes: u32,
    pub(crate) value_bytes: u32,
}

/// Keys and values in some order.
#[derive(Clone, Default)]
pub struct Rows {
    bytes: Vec<u8>,
    places: Vec<Place>,
}

impl Rows {
    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.places.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// The row with a number, from 0.
    #[must_use]
    pub fn get(&self, number: usize) -> Option<(&[u8], &[u8])> {
        self.places.get(number).map(|place| self.row(place))
    }

    /// All of them.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&[u8], &[u8])> {
        self.places.iter().map(|place| self.row(place))
    }

    pub(crate) fn last_key(&self) -> Option<&[u8]> {
        self.places.last().map(|place| self.key(place))
    }

    pub(crate) fn truncate(&mut self, rows: usize) {
        self.places.truncate(rows);
    }

    /// Adds bytes in which rows lie that [`Self::place`] adds; where they begin.
    pub(crate) fn add_bytes(&mut self, bytes: &[u8]) -> usize {
        let at = self.bytes.len();
        self.bytes.extend_from_slice(bytes);
        at
    }

    /// Adds a row whose bytes are here.
    pub(crate) fn place(&mut self, place: Place) {
        self.places.push(place);
    }

    pub(crate) fn reserve(&mut self, rows: usize) {
        self.places.reserve(rows);
    }

    /// The key of a row whose bytes are here.
    #[inline]
    pub(crate) fn key(&self, place: &Place) -> &[u8] {
        &self.bytes[place.at..][..place.key_bytes as usize]
    }

    #[inline]
    fn row(&self, place: &Place) -> (&[u8], &[u8]) {
        let bytes = &self.bytes[place.at..][..(place.key_bytes + place.value_bytes) as usize];
        bytes.split_at(place.key_bytes as usize)
    }

    /// Sorts by keys; what is in order in parts already is merged.
    pub(crate) fn sort_by(&mut self, order: impl Fn(&[u8], &[u8]) -> Ordering) {
        let Self { bytes, places } = self;
        let key = |place: &Place| &bytes[place.at..][..place.key_bytes as usize];
        places.sort_by(|a, b| order(key(a), key(b)));
    }
}

/// A copy of each row.
impl IntoIterator for Rows {
    type Item = KeyValue;
    type IntoIter = std::vec::IntoIter<KeyValue>;

    fn into_iter(self) -> Self::IntoIter {
        let copies: Vec<_> =
            self.iter().map(|(key, value)| (key.to_vec(), value.to_vec())).collect();
        copies.into_iter()
    }
}

impl FromIterator<KeyValue> for Rows {
    fn from_iter<I: IntoIterator<Item = KeyValue>>(rows: I) -> Self {
        let mut all = Self::default();
        for (key, value) in rows {
            let at = all.add_bytes(&key);
            all.add_bytes(&value);
            let bytes =
                |part: &[u8]| u32::try_from(part.len()).expect("a value is at most 1 MiB long");
            all.place(Place { at, key_bytes: bytes(&key), value_bytes: bytes(&value) });
        }
        all
    }
}

impl PartialEq for Rows {
    fn eq(&self, other: &Self) -> bool {
        self.iter().eq(other.iter())
    }
}

impl Eq for Rows {}

impl std::fmt::Debug for Rows {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_list().entries(self.iter()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_what_they_were_made_of() {
        let row = |key: &str, value: &str| (key.as_bytes().to_vec(), value.as_bytes().to_vec());
        let mut rows: Rows = [row("b", "two"), row("a", ""), row("", "none")].into_iter().collect();
        assert_eq!(rows.get(0), Some((&b"b"[..], &b"two"[..])));
        assert_eq!((rows.len(), rows.get(3)), (3, None));
        rows.sort_by(<[u8]>::cmp);
        assert_eq!(rows.last_key(), Some(&b"b"[..]));
        let sorted: Vec<_> = rows.clone().into_iter().collect();
        assert_eq!(sorted, [row("", "none"), row("a", ""), row("b", "two")]);
        assert_eq!(rows, sorted.into_iter().collect());
        rows.truncate(1);
        assert_eq!(format!("{rows:?}"), format!("{:?}", [(b"", b"none")]));
    }
}
