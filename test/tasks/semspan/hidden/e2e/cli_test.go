// Package e2e tests the command from outside: what is tested never runs in this process.
package e2e

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

var program string

func TestMain(m *testing.M) {
	os.Exit(run(m))
}

func run(m *testing.M) int {
	repository := os.Getenv("REPOSITORY")
	if repository == "" {
		repository = ".."
	}
	dir, err := os.MkdirTemp("", "semspan")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)
	program = filepath.Join(dir, "semspan")
	build := exec.Command("go", "build", "-o", program, "./cmd/semspan")
	build.Dir = repository
	build.Stderr = os.Stderr
	if err := build.Run(); err != nil {
		return 1
	}
	// Whoever keeps the tests apart from the program says where; from then on nobody can look the answers up.
	if tests := os.Getenv("HIDE_TESTS"); tests != "" {
		os.RemoveAll(tests)
	}
	return m.Run()
}

func semspan(t *testing.T, input []string, args ...string) string {
	t.Helper()
	command := exec.Command(program, args...)
	command.Stdin = strings.NewReader(strings.Join(input, "\n"))
	var out, problem bytes.Buffer
	command.Stdout, command.Stderr = &out, &problem
	if err := command.Run(); err != nil {
		return "error: " + strings.TrimSpace(problem.String())
	}
	return strings.Join(strings.Fields(out.String()), " ")
}

func expect(t *testing.T, got, want string) {
	t.Helper()
	if got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestPicksFromASpan(t *testing.T) {
	expect(t, semspan(t, []string{"1.2.0", "1.9.3", "2.0.0", "1.1.9"}, "^1.2"), "1.2.0 1.9.3")
}

func TestLatest(t *testing.T) {
	expect(t, semspan(t, []string{"1.2.0", "1.10.3", "1.9.0", "2.1.0"}, "--latest", "<2"), "1.10.3")
}

func TestRefusesWhatIsNoVersion(t *testing.T) {
	expect(t, semspan(t, []string{"1.0.0", "1.0"}, "--sort"), `error: "1.0" is no version`)
}

func TestReleasesComeAfterTheirPreReleases(t *testing.T) {
	expect(t, semspan(t, []string{"3.0.0", "3.0.0-beta", "3.0.0-alpha"}, "--sort"), "3.0.0-alpha 3.0.0-beta 3.0.0")
}

func TestPartsOfDigitsAreNumbers(t *testing.T) {
	expect(t, semspan(t, []string{"2.1.0-beta.11", "2.1.0-beta.2", "2.1.0-beta.1"}, "--sort"),
		"2.1.0-beta.1 2.1.0-beta.2 2.1.0-beta.11")
	expect(t, semspan(t, []string{"1.0.0-99999999999999999999999", "1.0.0-100000000000000000000000"}, "--latest", ">0"),
		"1.0.0-100000000000000000000000")
}

func TestDigitsComeBeforeLetters(t *testing.T) {
	expect(t, semspan(t, []string{"1.0.0--1", "1.0.0-9a", "1.0.0-10", "1.0.0-A"}, "--sort"),
		"1.0.0-10 1.0.0--1 1.0.0-9a 1.0.0-A")
}

func TestMorePartsComeLater(t *testing.T) {
	expect(t, semspan(t, []string{"1.0.0-a.b", "1.0.0-a-b", "1.0.0-a", "1.0.0-a.1"}, "--sort"),
		"1.0.0-a 1.0.0-a.1 1.0.0-a.b 1.0.0-a-b")
}

func TestSpansFollowTheOrder(t *testing.T) {
	expect(t, semspan(t, []string{"1.4.0-rc.9", "1.4.0-rc.10", "1.4.0"}, ">1.4.0-rc.9"), "1.4.0-rc.10 1.4.0")
}
