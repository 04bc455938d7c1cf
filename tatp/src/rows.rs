//! The bytes of TATP's keys and rows.
//!
//! ```text
//! subscriber        key s_id              40 bytes: u64 sub_nbr (BCD) | 10 bits | 10 nibbles |
//!                                         10 bytes | padding to 32 | u32 msc_location | u32 vlr_location
//! secondary         key sub_nbr (BCD)      8 bytes: u64 s_id
//! access_info       key s_id, ai_type     16 bytes: data1 | data2 | data3, 3 letters | data4, 5 | 6 zero
//! special_facility  key s_id, sf_type      8 bytes: is_active | error_cntrl | data_a | data_b, 5 letters
//! call_forwarding   key s_id, sf_type,    16 bytes: end_time | numberx, 15 digits
//!                       start_time / 8
//! ```
//! Types are 1 to 4 and take 2 bits of a key; start times are 0, 8 and 16 and take 2 more.

pub(crate) const SUBSCRIBER_BYTES: usize = 40;
pub(crate) const SECONDARY_BYTES: usize = 8;
pub(crate) const ACCESS_INFO_BYTES: usize = 16;
pub(crate) const SPECIAL_FACILITY_BYTES: usize = 8;
pub(crate) const CALL_FORWARDING_BYTES: usize = 16;

/// Where bit_1 to bit_10 lie in a subscriber row.
pub(crate) const BITS_AT: usize = 8;
pub(crate) const MSC_LOCATION_AT: usize = 32;
pub(crate) const VLR_LOCATION_AT: usize = 36;
/// Where data_a lies in a special facility row.
pub(crate) const DATA_A_AT: usize = 2;

/// The 15 zero-padded digits of `s_id`, 4 bits each.
#[inline]
pub(crate) fn sub_nbr(s_id: u64) -> u64 {
    let (mut left, mut digits) = (s_id, 0);
    for place in 0..15 {
        digits |= (left % 10) << (4 * place);
        left /= 10;
        if left == 0 {
            break;
        }
    }
    digits
}

#[inline]
pub(crate) fn access_info_key(s_id: u64, ai_type: u8) -> u64 {
    s_id << 2 | u64::from(ai_type - 1)
}

#[inline]
pub(crate) fn special_facility_key(s_id: u64, sf_type: u8) -> u64 {
    s_id << 2 | u64::from(sf_type - 1)
}

#[inline]
pub(crate) fn call_forwarding_key(s_id: u64, sf_type: u8, start_time: u8) -> u64 {
    special_facility_key(s_id, sf_type) << 2 | u64::from(start_time / 8)
}

/// A call forwarding row.
pub(crate) fn call_forwarding_row(end_time: u8, numberx: u64) -> [u8; CALL_FORWARDING_BYTES] {
    let mut row = [0; CALL_FORWARDING_BYTES];
    row[0] = end_time;
    let mut left = numberx;
    for digit in row[1..].iter_mut().rev() {
        *digit = b'0' + u8::try_from(left % 10).expect("a digit");
        left /= 10;
    }
    row
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_and_numbers() {
        assert_eq!(sub_nbr(1_234_567), 0x123_4567);
        assert_eq!(sub_nbr(999_999_999_999_999), 0x999_9999_9999_9999);
        assert_eq!(access_info_key(5, 4), 23);
        assert_eq!(call_forwarding_key(5, 1, 16), 82);
        assert_eq!(&call_forwarding_row(9, 42), b"\x09000000000000042");
    }
}
