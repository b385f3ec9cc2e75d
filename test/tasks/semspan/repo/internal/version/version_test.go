package version

import "testing"

func parse(t *testing.T, text string) Version {
	t.Helper()
	v, err := Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func TestParseKeepsAllParts(t *testing.T) {
	for _, text := range []string{"1.2.3", "0.0.0", "1.0.0-rc.1", "1.0.0-rc.1+linux.7", "2.1.0+b"} {
		if got := parse(t, text).String(); got != text {
			t.Errorf("%s became %s", text, got)
		}
	}
}

func TestParseRefusesWhatIsNoVersion(t *testing.T) {
	for _, text := range []string{"", "1", "1.2", "01.0.0", "1.0.0-", "1.0.0-01", "v1.0.0", "1.0.0+", "99999999999999999999.0.0"} {
		if _, err := Parse(text); err == nil {
			t.Errorf("%q was taken for a version", text)
		}
	}
}

func TestCompareNumbersByValue(t *testing.T) {
	order := []string{"0.9.0", "1.0.0-alpha", "1.0.0", "1.0.9", "1.0.10", "1.2.0", "1.10.0", "2.0.0"}
	for i := range order {
		for j := range order {
			got := Compare(parse(t, order[i]), parse(t, order[j]))
			if (got < 0) != (i < j) || (got > 0) != (i > j) {
				t.Errorf("%s against %s: %d", order[i], order[j], got)
			}
		}
	}
}

func TestBuildMetadataSaysNothing(t *testing.T) {
	if Compare(parse(t, "1.0.0+a"), parse(t, "1.0.0+b")) != 0 {
		t.Error("build metadata changed the order")
	}
}
