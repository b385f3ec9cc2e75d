/** CPU time of this process in milliseconds. Unlike the clock, it does not count the time that other processes use. */
export function cpuTimeMs(): number {
  const { user, system } = process.cpuUsage()
  return (user + system) / 1000
}
