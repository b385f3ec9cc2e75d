package span

import (
	"testing"

	"example.org/semspan/internal/version"
)

func TestHolds(t *testing.T) {
	cases := []struct {
		span, version string
		want          bool
	}{
		{"^1.2", "1.9.9", true},
		{"^1.2", "1.1.9", false},
		{"^1.2", "2.0.0-rc.1", false},
		{"^0.3", "0.4.0", false},
		{"^0.0.3", "0.0.4", false},
		{"~1.2.3", "1.2.9", true},
		{"~1.2.3", "1.3.0", false},
		{">=1 <2", "1.5.0", true},
		{">=1 <2", "2.0.0", false},
		{"1.0.0 || >3", "3.0.1", true},
		{"1", "1.0.0", true},
	}
	for _, c := range cases {
		span, err := Parse(c.span)
		if err != nil {
			t.Fatal(err)
		}
		v, err := version.Parse(c.version)
		if err != nil {
			t.Fatal(err)
		}
		if got := span.Holds(v); got != c.want {
			t.Errorf("%s in %s: %v", c.version, c.span, got)
		}
	}
}

func TestParseRefusesWhatIsNoSpan(t *testing.T) {
	for _, text := range []string{"", "1 ||", "latest", "=>1"} {
		if _, err := Parse(text); err == nil {
			t.Errorf("%q was taken for a span", text)
		}
	}
}
